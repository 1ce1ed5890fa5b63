"""Merge proportional channels, fold constants, drop what nothing alive reads, and write the narrower tensors.

All of it from one optimistic analysis: dummies that wait for each other, in cliques or in cycles, go together.
"""

from __future__ import annotations

from canon.graph.mapped import room_like
from canon.recovery.facts import Facts, Subject
from canon.recovery.proposal import Proposal
from canon.recovery.reduce import plan
from canon.rewrite.resize import resize


def compact(subject: Subject, facts: Facts) -> Proposal | None:
    """The model with one channel for each class that is read. What was looked at and kept is told as well."""
    chosen = plan(subject.graph, subject.tensors, facts.classes, subject.tolerance, subject.widths)
    widths = {space: outcome.kept.numel() for space, outcome in chosen.outcomes.items()}
    unused_ends = chosen.unused_ends(subject.kernels)
    written = dict(chosen.write(room_like(subject.tensors.values()), unused_ends))
    again = bool(written) and chosen.unsettled
    kernels = {name: subject.kernels[name].without(ends) for name, ends in unused_ends.items()}
    return Proposal((), resize(subject.graph, widths, unused_ends), written, chosen.outcomes, again, kernels)
