"""Channels that have one value whatever the input is, because their inputs never leave a range.

A row that is nowhere positive, over inputs that are never negative, with a shift below zero, is dead behind a ReLU,
although no number of it is zero. Behind ReLU6, a sigmoid or tanh a channel may be held at the other end as well.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from canon.describe import Array
from canon.graph import Space
from canon.recovery.facts import Facts, Subject
from canon.recovery.proposal import Proposal, SpaceChange, hold, space_by_space

USUAL: Final = 0.2
"""A part of the median size that ordinary channels of a space reach."""


def unreachable(subject: Subject, facts: Facts) -> Proposal | None:
    """Rows of such channels become zero; where the value is zero, nobody reads them any more."""

    def held(now: Subject, space: Space) -> SpaceChange | None:
        values = np.array([facts.ranges.constant(space, consumer.point) for consumer in space.consumers])
        still = ~np.isnan(values).any(axis=0)
        if not still.any() or still.all():
            return None
        still &= _moving(now, space) & _ordinary(space, facts)
        return hold(now, space, still, (values == 0).all(axis=0))

    return space_by_space(subject, [s for s in subject.narrowing if facts.ranges.special(s)], held)


def _ordinary(space: Space, facts: Facts) -> Array:
    """Channels that signs hold, or of about the usual size: what a norm has all but switched off may be the owner's."""
    usual = np.ones(space.width, dtype=bool)
    for stage in space.stages:
        if stage.kind == "activation" and stage.reach == "pointwise":
            size = facts.sizes.at(space, stage.inputs[0])[0]
            usual &= size >= USUAL * np.median(size)
    return np.asarray(usual | ~np.logical_or.reduce([facts.ranges.by_size(space, c.point) for c in space.consumers]))


def _moving(subject: Subject, space: Space) -> Array:
    """Channels whose rows are not zero already."""
    return np.asarray(np.any([subject.rows(space, p).any(axis=1) for p in space.producers], axis=0))
