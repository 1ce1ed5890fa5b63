"""Recovery of disguised networks: shapes, logits, times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import Block, Paragraph
from canon_benchmarks.tables.hidden import kernels, not_measured, table_by_attack


def restored_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One row for every model and ratio."""
    timed = sorted(record.seconds["recover"] for record in records if "recover" in record.seconds)
    if timed:
        yield Paragraph(f"Recovery took {timed[len(timed) // 2]:.2g} s in the median, {timed[-1]:.2g} s at most.")
    yield from kernels(records)
    yield Paragraph("Cells: cases that are good, and the largest relative difference of logits in float32.")
    yield table_by_attack(records, "gap")
    yield from not_measured(records)
