"""Channels with a shift of plus or minus infinity: a ReLU never sees anything else, whatever the filter is.

They come first: no other pass can compare numbers that are not finite.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.describe import Array
from canon.graph import Space
from canon.graph.tensors import not_finite
from canon.recovery.facts import Facts, Subject
from canon.recovery.proposal import Proposal, SpaceChange, hold, space_by_space

FAR: Final = 1e4
"""As good as infinity: functions that have an end are there."""


def endless(subject: Subject, facts: Facts) -> Proposal | None:
    """Such channels read nothing and have a finite shift; where they are zero, nobody reads them."""
    names = {name for space in subject.graph.free for name in shifts(space, subject)}
    if not not_finite((name, subject.tensors[name]) for name in names):
        return None

    def settled(now: Subject, space: Space) -> SpaceChange | None:
        infinite = _infinite(now, space)
        if not infinite.any() or not space.consumers:
            return None
        values = np.array([facts.ranges.constant(space, consumer.point) for consumer in space.consumers])
        change = hold(now, space, infinite & np.isfinite(values).all(axis=0), (values == 0).all(axis=0))
        if change is None:
            return None
        return replace(change, tensors={**change.tensors, **_bounded(now, space, change.channels)})

    return space_by_space(subject, subject.graph.free, settled)


def shifts(space: Space, subject: Subject) -> dict[str, int]:
    """By name of a tensor that shifts channels of a space: where the space begins in it."""
    found = {
        stage.params["bias"]: stage.offset for stage in space.stages if "bias" in stage.params and stage.repeat == 1
    }
    for producer in space.producers:
        bias = subject.graph.maps[producer.map].bias
        if bias is not None and producer.repeat == 1:
            found[bias] = producer.offset
    return found


def _infinite(subject: Subject, space: Space) -> Array:
    marks = np.zeros(space.width, dtype=bool)
    for name, offset in shifts(space, subject).items():
        tensor = subject.tensors[name].detach()
        if tensor.ndim == 1:
            marks |= torch.isinf(tensor[offset : offset + space.width]).cpu().numpy()
    return marks


def _bounded(subject: Subject, space: Space, channels: Tensor) -> dict[str, Tensor]:
    """The shifts of some channels, with a large number for infinity."""
    changed = {}
    for name, offset in shifts(space, subject).items():
        tensor = subject.tensors[name].detach().clone()
        if tensor.ndim == 1:
            rows = (channels + offset).to(tensor.device)
            tensor[rows] = torch.where(torch.isinf(tensor[rows]), FAR * tensor[rows].sign(), tensor[rows])
            changed[name] = tensor
    return changed
