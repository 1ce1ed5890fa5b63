"""Sequences of rewritings behind a disguise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import Block, Table
from canon_benchmarks.tables.hidden import not_measured


def rewritten_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One row for every sequence."""
    rows = []
    for record in (record for record in records if record.outcome == "done"):
        done = ", ".join(name.replace("_", " ") for name in record.metrics["rewritings"])
        answers = (record.metrics[way]["network"] for way in ("reference", "key"))
        rows.append((record.case.model, f"{record.case.seed}", f"{record.metrics['size']}", done, *answers))
    yield Table.of(("model", "seed", "input", "rewritings", "by reference", "by key"), rows)
    yield from not_measured(records)
