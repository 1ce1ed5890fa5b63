"""Merge proportional channels, fold constants, drop what nothing alive reads, and write the narrower tensors.

All of it from one optimistic analysis: dummies that wait for each other, in cliques or in cycles, go together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from canon.graph import ChannelGraph
from canon.graph.mapped import room_like
from canon.recovery.facts import Facts, Subject
from canon.recovery.facts.given_up import given_up
from canon.recovery.passes.grown import grown_of
from canon.recovery.proposal import Proposal
from canon.recovery.reduce import plan
from canon.rewrite.axes import by_row
from canon.rewrite.kernels import cropped
from canon.rewrite.resize import resize

SAMPLE: Final = 8
"""Columns that are looked at first."""


def compact(subject: Subject, facts: Facts) -> Proposal | None:
    """The model with one channel for each class that is read. What was looked at and kept is told as well."""
    classes = facts.classes
    stay = given_up(subject, classes)
    chosen = plan(subject.graph, subject.tensors, classes, subject.tolerance, subject.widths, stay)
    widths = {space: outcome.kept.numel() for space, outcome in chosen.outcomes.items()}
    unused_ends = chosen.unused_ends(subject.kernels)
    empty = room_like(subject.tensors.values())
    written = dict(chosen.write(empty, unused_ends))
    unseen = {n: k for n, k in subject.kernels.items() if n in written and n not in unused_ends}
    for name, ends in grown_of(unseen, written).items():  # layers whose columns nobody had to look at
        written[name], unused_ends[name] = cropped(written[name], ends, empty), ends
    again = bool(written) and (chosen.unsettled or _emptied(subject.graph, written))
    kernels = {name: subject.kernels[name].without(ends) for name, ends in unused_ends.items()}
    return Proposal((), resize(subject.graph, widths, unused_ends), written, chosen.outcomes, again, kernels)


def _emptied(graph: ChannelGraph, written: Mapping[str, Tensor]) -> bool:
    """Whether all that some row read has cancelled: only now is it seen to make a constant."""
    for linear in graph.maps:
        if linear.weight in written:
            rows = by_row(written[linear.weight], linear)
            silent = rows[~rows[:, :SAMPLE].flatten(1).any(dim=1)]  # a few numbers tell most rows
            if silent.numel() and not bool(silent.flatten(1).any(dim=1).all()):
                return True
    return False
