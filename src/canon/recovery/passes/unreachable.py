"""Channels that have one value whatever the input is, because their inputs never leave a range.

A row that is nowhere positive, over inputs that are never negative, with a shift below zero, is dead behind a ReLU, although
no number of it is zero. Behind ReLU6, a sigmoid or tanh a channel may be held at the other end as well.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from canon.recovery.facts import Facts, Subject
from canon.recovery.rewriting import Rewrite, forget, scale_rows, together


def unreachable(subject: Subject, facts: Facts) -> Rewrite | None:
    """Rows of such channels become zero; where the value is zero, nobody reads them any more."""
    parts: dict[int, Tensor] = {}
    tensors: dict[str, Tensor] = {}
    for space in subject.graph.free:
        if not space.consumers or not facts.ranges.special(space):
            continue
        values = np.array([facts.ranges.constant(space, consumer.point) for consumer in space.consumers])
        still = ~np.isnan(values).any(axis=0)
        if not still.any() or still.all():
            continue
        moving = _moving(subject, space.id, still)
        channels = torch.from_numpy(np.flatnonzero(still & moving))
        if not channels.numel():
            continue
        now = subject.with_tensors(tensors)
        tensors.update(scale_rows(now, space, channels, 0.0))
        dead = torch.from_numpy(np.flatnonzero((values == 0).all(axis=0) & still & moving))
        tensors.update(forget(subject.with_tensors(tensors), space, dead))
        parts[space.id] = channels
    return together(parts, tensors)


def _moving(subject: Subject, index: int, still: np.ndarray) -> np.ndarray:
    """Channels whose rows are not zero already."""
    space = subject.graph.spaces[index]
    moving = np.zeros(space.width, dtype=bool)
    for producer in space.producers:
        moving |= subject.rows(space, producer).any(axis=1)
    return moving
