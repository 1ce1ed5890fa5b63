"""Disguised networks whose norms were folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import Block
from canon_benchmarks.tables.hidden import good_of, largest, not_measured, rows_by_model


def folded_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One row for every model and ratio."""
    yield rows_by_model(
        ("norms", "good", "worst residual, folded", "with the owner's scales, reference", "key"),
        records,
        lambda found: (
            str(found[0].metrics["norms"]),
            good_of(found),
            *(largest(found, f"{way}max_rel_err") for way in ("", "reference_", "key_")),
        ),
    )
    yield from not_measured(records)
