"""Merge proportional channels, fold constants, drop what nothing alive reads, and write the narrower tensors.

All of it from one optimistic analysis: dummies that wait for each other, in cliques or in cycles, go together.
"""

from __future__ import annotations

from canon.recovery.facts import Facts, Subject
from canon.recovery.reduce import reduce
from canon.recovery.rewriting import Rewrite
from canon.rewrite.resize import resize


def compact(subject: Subject, facts: Facts) -> Rewrite | None:
    """The model with one channel for each class that is read. What was looked at and kept is told as well."""
    reduction = reduce(subject.graph, subject.tensors, facts.classes, subject.tolerance, subject.widths)
    outcomes = reduction.outcomes
    widths = {space: outcome.kept.numel() for space, outcome in outcomes.items()}
    return Rewrite((), resize(subject.graph, widths), reduction.tensors, outcomes, reduction.rings)
