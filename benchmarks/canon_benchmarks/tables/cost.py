"""Small measurements and their limits: one row for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import BAD, Block, Table
from canon_benchmarks.tables.hidden import not_measured


def cost_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """The table; what passes its limit is marked."""
    rows = []
    for record in (record for record in records if record.outcome == "done"):
        case, found = record.case, record.metrics
        name = f"{case.what} {case.model}" if case.what in ("trace", "growth", "training") else (
            f"{case.what} {case.model} {case.attack} {case.ratio:g}"
        )  # fmt: skip
        limit = "" if found["limit"] is None else f"{found['limit']:g}"
        rows.append((name, f"{found['value']:.2f}{'' if record.good else f' {BAD}'}", limit, found["note"]))
    yield Table.of(("measurement", "value", "limit", ""), rows)
    yield from not_measured(records)
