"""Kernels whose outermost entries hold next to nothing: grown by zeros, to which noise was added afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from canon.recovery.facts import Facts, Subject
from canon.recovery.passes.faint import FAINT
from canon.recovery.proposal import Proposal, SpaceChange

SAMPLE: Final = 8
"""Filters that are looked at first."""


def fringe(subject: Subject, facts: Facts) -> Proposal | None:
    """Zeros in their place, where the kernel can then lose them."""
    spaces, changes = _spaces(subject), []
    for name, kernel in subject.kernels.items():
        weight = subject.tensors[name].detach()
        if name not in spaces or not _faint(weight[:SAMPLE], 4 * FAINT).any():
            continue
        empty = _faint(weight, FAINT)
        if empty.any() and weight[..., empty].any() and kernel.removable(~empty.cpu()):
            none = torch.empty(0, dtype=torch.int64)
            changes.append(SpaceChange(spaces[name], none, {name: weight.masked_fill(empty, 0.0)}))
    return Proposal(tuple(changes)) if changes else None


def _faint(weight: Tensor, small: float) -> Tensor:
    """Places of a kernel where no filter holds more than a small part of the largest number."""
    sizes = weight.abs().amax(dim=(0, 1))
    return sizes <= small * sizes.max()


def _spaces(subject: Subject) -> Mapping[str, int]:
    """By name of a weight: a space that it makes channels of."""
    found = {linear.weight: linear.rows[0].space for linear in subject.graph.maps if linear.rows}
    stages = (stage for space in subject.graph.spaces for stage in space.stages)
    return found | {s.params["weight"]: s.space for s in stages if s.kind == "depthwise"}
