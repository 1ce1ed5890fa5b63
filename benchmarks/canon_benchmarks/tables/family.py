"""Families of transformers: one row for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from canon.bench.records import Record
from canon.bench.tables.document import Block, Paragraph, Table
from canon_benchmarks.tables.hidden import not_measured

HEAD = (
    "Family", "Class", "Front end", "Seen", "Free / producers", "Free / hidden", "Drift", "Restored", "Certified",
)  # fmt: skip


def family_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """The table."""
    yield Paragraph(
        "*Seen*: share of the numbers that the forward pass uses with a place in the graph. *Free / hidden*: free "
        "spaces, and how many hidden spaces of MLPs, experts or gates the model has, each of which should be among "
        "them. *Drift*: how far outputs moved by the attack, of their range."
    )
    yield Table.of(HEAD, [_row(r.case.family, r.metrics) for r in records if r.outcome == "done"])
    yield from not_measured(records)


def _row(family: str, found: Any) -> tuple[str, ...]:
    seen = "100%" if found["seen"] == 1 else f"{found['seen']:.2%}"
    free, hidden = f"{found['free']} / {found['producers']}", f"{found['free_spaces']} / {found['hidden']}"
    words = ["yes" if found[key] else "no" for key in ("restored", "certified")]
    return family, found["architecture"], found["front_end"], seen, free, hidden, f"{found['drift']:.0e}", *words
