"""Recovery from noisy weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.common import by, distinct, values_of
from canon.bench.tables.document import Block, Paragraph, Table


def noisy_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One row for every model, one column for every disturbance."""
    noises = distinct(record.case.noise for record in records)

    def row(name: str, part: Sequence[Record]) -> list[str]:
        cells = [values_of(by(part, noise=noise), "shapes") for noise in noises]
        return [name, *(f"{sum(cell)}/{len(cell)}" if cell else "" for cell in cells)]

    yield Paragraph("Cells: models that come back with every clean shape.")
    models = sorted(distinct(record.case.model for record in records))
    rows = [row(name, by(records, model=name)) for name in models]
    yield Table.of(("model", *noises), [*rows, row("all", records)])
