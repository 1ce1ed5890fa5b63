"""Channels `f(u)` and `f(−u)` of functions that are odd but for a constant: tanh, sigmoid, hardtanh and the like.

`f(−u) = 2·f(0) − f(u)`, so readers take the one from the other, and a constant from what becomes of it.
"""

from __future__ import annotations

import numpy as np
import torch

from canon.describe.arrays import norm
from canon.graph import Space
from canon.recovery.facts import Facts, Subject
from canon.recovery.passes.mirrored import bends, directions, glance
from canon.recovery.proposal import Proposal, SpaceChange, add_up, scale_rows, space_by_space
from canon.transforms import ChannelTransform


def turned(subject: Subject, facts: Facts) -> Proposal | None:
    """Readers take such channels from the one of the other sign; what made them reads nothing any more."""
    spaces = [s for s in subject.narrowing if _may(s, facts) and glance(subject, s)]
    return space_by_space(subject, spaces, lambda now, space: _one_sided(now, facts, space))


def _may(space: Space, facts: Facts) -> bool:
    return any(stage.kind == "activation" and facts.curves.of(stage.function).turning for stage in space.stages)


def _one_sided(subject: Subject, facts: Facts, space: Space) -> SpaceChange | None:
    seen = bends(subject, facts, space, lambda curve: curve.turning)
    if not seen or any(bent.beside or bent.gate is not None for bent in seen):
        return None
    found = directions(space, seen, subject.tolerance.equal)
    gone = np.flatnonzero(found.sign != found.sign[found.leader])
    if not gone.size:
        return None
    into, everyone = found.leader[gone], np.arange(space.width)
    rows, columns = np.concatenate([everyone, gone]), np.concatenate([everyone, into])
    transforms = {}
    for bent in seen:
        # Without its row, a channel is what the function makes of its shift.
        assert bent.stage.function is not None, "its curve is known"
        with torch.no_grad():
            left = bent.stage.function(torch.from_numpy(bent.vectors[gone, -1])).double().numpy()
        twice = 2 * bent.curve.origin
        if twice and (np.abs(left) < 1e-3 * abs(twice)).any():
            return None
        for point, factor in bent.factors.items():
            stays = np.ones(space.width)
            stays[gone] = twice / np.where(left != 0, left, 1.0)
            values = np.concatenate([stays, -factor[gone] / np.where(factor[into] != 0, factor[into], 1.0)])
            tap = subject.graph.taps[point]
            entries = (torch.from_numpy(part) for part in (rows, columns, values))
            transforms[tap] = ChannelTransform.of(space.width, space.width, *entries)
    channels = torch.from_numpy(gone)
    off = max(norm(bent.unit[gone] + bent.unit[into]).max() for bent in seen)
    tensors = scale_rows(subject, space, channels, 0.0)
    moved, noise = add_up(subject.with_tensors(tensors), space, transforms, off)
    return SpaceChange(space.id, channels, {**tensors, **moved}, noise=noise)
