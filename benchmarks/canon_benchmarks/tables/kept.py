"""Attacks: what is computed stays the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.common import by, distinct
from canon.bench.tables.document import Block, Heading, Paragraph
from canon_benchmarks.tables.hidden import kernels, not_measured, table_by_attack


def kept_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """A table for every precision."""
    yield from kernels(records)
    yield Paragraph("Cells: cases that are good, and the largest difference of outputs, relative to the largest.")
    for dtype in distinct(record.case.dtype for record in records):
        yield Heading(dtype)
        yield table_by_attack(by(records, dtype=dtype), "error")
    yield from not_measured(records)
