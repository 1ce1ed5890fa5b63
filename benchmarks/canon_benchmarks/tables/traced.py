"""How much of the public architectures a trace can follow: one row per model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from canon.bench.records import Record
from canon.bench.tables.common import by, measured
from canon.bench.tables.document import Block, Heading, Items, Paragraph, Table
from canon_benchmarks.measures.traced import NOT_CHECKED

TITLES = {
    "torchvision": "torchvision",
    "timm": "timm: the smallest model of each family",
    "patterns": "Written by hand: ResNets for CIFAR with shortcuts filled up with zeros, and a detector like YOLO's",
}


def traced_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """A table for every library."""
    for source, title in TITLES.items():
        chosen = by(records, source=source)
        traced = measured(chosen)
        yield Heading(title)
        yield Paragraph(f"{len(traced)} of {len(chosen)} models trace.")
        head = ("Model", "Free / producers", "Free / spaces", "Depthwise", "Front end", "Pins")
        yield Table.of(head, [_row(record.case.model, record.metrics) for record in traced])
        if failed := [f"{r.case.model}: {r.error}" for r in chosen if r.outcome != "done"]:
            yield Paragraph("Not traced:")
            yield Items(tuple(failed))
    yield Heading("Rewrites that are run")
    yield Paragraph(
        "For every torchvision model and those written by hand a random permutation, an allowed scaling, planted "
        "copies and their merge are applied to all free spaces at once, and the outputs compared in float64 (relative "
        "difference at most 1e-10), except for those with more than 150 million parameters, which are too much memory "
        f"for several copies in float64: {', '.join(NOT_CHECKED)}."
    )


def _row(model: str, found: Any) -> tuple[str, ...]:
    pins = "; ".join(f"{reason} ×{number}" for reason, number in found["pins"])
    kept = f" ({found['rigid']})" if found["rigid"] else ""
    free, spaces = f"{found['free']}{kept} / {found['total']}", f"{found['free_spaces']} / {found['spaces']}"
    return model, free, spaces, str(found["depthwise"]), found["front_end"], pins
