"""What layout keys hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import Block, Table
from canon_benchmarks.tables.hidden import not_measured


def keysize_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One row for every key."""
    head = ("model", "key", "exact numbers per channel", "coarse numbers per row", "of the model's size", "noise")
    yield Table.of(head, [_row(record) for record in records if record.outcome == "done"])
    yield from not_measured(records)


def _row(record: Record) -> tuple[str, ...]:
    found, kind = record.metrics, "robust" if record.case.robust else "default"
    exact = f"{found['exact']} of {found['bytes']} bytes"
    return record.case.model, kind, exact, f"{found['rows']}", f"{found['share']:.1%}", f"{found['noise']:.2f}"
