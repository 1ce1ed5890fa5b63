"""How far the tensors of two models in one layout are from each other.

Some rows at a time, in scratch memory: writing fresh pages costs more than all the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon._memory import scratch
from canon.graph import ChannelGraph

EPSILON: Final = 1e-12
"""Keeps the residual of a channel without weights finite."""

PIECE: Final = 1 << 16
"""Weights compared at a time on the host: what a core's cache holds."""

PIECE_ON_DEVICE: Final = 1 << 22
"""The same on a device, where every step costs a launch."""


def layer_weights(graph: ChannelGraph) -> dict[str, tuple[str, int]]:
    """By layer: its weight, and the axis of its output channels."""
    found = {linear.name: (linear.weight, linear.row_axis) for linear in graph.maps}
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == "depthwise":
                weight = stage.params["weight"]
                found[weight.removesuffix(".weight")] = (weight, stage.axis)
    return found


def row_residuals(ours: Tensor, theirs: Tensor, axis: int) -> Tensor:
    """The relative residual of every row along an axis, in float64."""
    mine, yours = (weight.detach().movedim(axis, 0).flatten(1) for weight in (ours, theirs))
    count, length = mine.shape
    piece = PIECE if mine.device.type == "cpu" else PIECE_ON_DEVICE
    step = min(count, max(1, piece // max(1, length)))
    gap, size = scratch((2, step, length), torch.float64, mine.device)
    found = []
    for start in range(0, count, step):
        rows = slice(start, start + step)
        used = slice(0, min(step, count - start))
        gap[used].copy_(mine[rows])
        size[used].copy_(yours[rows])
        gap[used].sub_(size[used])
        distance, norm = (torch.linalg.vector_norm(numbers[used], dim=1) for numbers in (gap, size))
        found.append(distance / (norm + EPSILON))
    return torch.cat(found).cpu()


def parameter_distances(
    graph: ChannelGraph, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> dict[str, float]:
    """By tensor that goes channel by channel: its relative distance from the reference's as a whole."""
    names = dict.fromkeys(linear.bias for linear in graph.maps if linear.bias is not None)
    for space in graph.spaces:
        for stage in space.stages:
            roles = [r for r in stage.params if not (stage.kind == "depthwise" and r == "weight")]
            names |= dict.fromkeys(stage.params[role] for role in roles)
    if not names:
        return {}
    flat = [torch.cat([side[name].detach().double().flatten() for name in names]).cpu() for side in (ours, theirs)]
    starts = np.cumsum([0, *(theirs[name].numel() for name in names)])[:-1]
    gap, size = (np.sqrt(np.add.reduceat(x.square().numpy(), starts)) for x in (flat[0] - flat[1], flat[1]))
    return dict(zip(names, (gap / (size + EPSILON)).tolist(), strict=True))
