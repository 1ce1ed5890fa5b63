"""How many duplicates the probes alone find: one row for every number of probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import Block, Table
from canon_benchmarks.tables.hidden import not_measured


def probing_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """The table."""
    rows = [
        (record.case.model, *(str(row[name]) for name in ("probes", "duplicates")), f"{row['found']:.1%}",
         str(row["wrong_links"]))
        for record in records if record.outcome == "done" for row in record.metrics["counts"]
    ]  # fmt: skip
    yield Table.of(("model", "probes", "duplicates", "found", "distinct channels linked"), rows)
    yield from not_measured(records)
