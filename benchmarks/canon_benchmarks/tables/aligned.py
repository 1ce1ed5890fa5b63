"""Verification of disguised networks, by way of the reference and of the layout key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import Block
from canon_benchmarks.tables.hidden import good_of, largest, not_measured, rows_by_model


def aligned_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One row for every model and ratio."""
    head = ("good", "worst residual, reference", "worst residual, key", "key, of the model's size")
    yield rows_by_model(
        head,
        records,
        lambda found: (
            good_of(found),
            *(largest(found, f"{way}_max_rel_err") for way in ("reference", "key")),
            f"{found[0].metrics['key_share']:.2%}",
        ),
    )
    yield from not_measured(records)
