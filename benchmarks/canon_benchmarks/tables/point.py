"""Nine kinds of hidden redundancy: a row for each, a column for every model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from canon.bench.records import Record
from canon.bench.tables.common import by, distinct
from canon.bench.tables.document import Block, Paragraph, Table
from canon_benchmarks.tables.hidden import not_measured

POINTS: Final = {
    "dead_range": "units dead by the range of their inputs",
    "odd_group": "`u` with `−u`, in groups that cancel",
    "tiny_column": "columns of 1e-12 to 1e-30",
    "noisy_clique": "cliques whose readers carry noise of 1e-5",
    "constant": "constants, behind zero padding read by inner taps",
    "wide_basis": "linear bases widened, and copies of negative sign",
    "endless": "a shift of −inf on a ReLU unit",
    "grown_kernel": "kernels grown by zeros, in one axis or both",
    "idle_layer": "layers that do nothing, shuffled and scaled",
    "idle_branch": "branches that add zero",
}
"""The primitive that injects each kind, and what it is."""


def point_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One row for every kind."""
    models = distinct(record.case.model for record in records)
    yield Paragraph(
        "Cells: whether every tensor of the lean model has its clean shape again, and how far logits are from those of "
        "the clean model in float64, relative to the largest. *none*: the model has no place for it."
    )
    rows = [
        (POINTS.get(kind, kind), f"`{kind}`", *(_cell(by(records, model=model, attack=kind)) for model in models))
        for kind in distinct(record.case.attack for record in records)
    ]
    yield Table.of(("kind", "primitive", *models), rows)
    yield from not_measured(records)


def _cell(records: Sequence[Record]) -> str:
    done = [record for record in records if record.outcome != "refused"]
    if not done:
        return "none" if records else ""
    drift = max((record.metrics["drift"] for record in done if "drift" in record.metrics), default=float("nan"))
    return f"{sum(record.good for record in done)}/{len(done)}, {drift:.0e}"
