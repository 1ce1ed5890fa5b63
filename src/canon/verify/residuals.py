"""How far the tensors of two models in one layout are from each other.

Some rows at a time, in scratch memory: writing fresh pages costs more than all the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon._memory import scratch
from canon.describe.arrays import Array
from canon.graph import ChannelGraph

EPSILON: Final = 1e-12
"""Keeps the residual of a channel without weights finite."""

FLOOR: Final = 1e-3
"""Part of what an offset is added to that it is measured by where it is smaller itself."""

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


def parameter_residuals(
    graph: ChannelGraph, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> dict[str, float]:
    """By tensor that goes channel by channel: the worst relative residual of its entries.

    An entry is measured by its own size or the tensor's typical one, whichever is larger. Where a tensor is zero, what
    it is added to gives the measure: rounding leaves as much in a bias.
    """
    floors = _floors(graph, theirs)
    if not floors:
        return {}
    sizes = [theirs[name].numel() for name in floors]
    flat = [_flat([side[name] for name in floors]) for side in (ours, theirs)]
    starts = np.cumsum([0, *sizes])[:-1]
    typical = np.sqrt(np.add.reduceat(np.square(flat[1]), starts) / sizes)
    least = np.maximum(typical, FLOOR * np.array([*floors.values()]))
    scale = np.maximum(np.abs(flat[1]), np.repeat(least, sizes))
    gap = np.abs(flat[0] - flat[1])
    residual = np.divide(gap, scale, out=np.where(gap > 0, np.inf, 0.0), where=scale > 0)
    return dict(zip(floors, np.maximum.reduceat(residual, starts).tolist(), strict=True))


def parameter_names(graph: ChannelGraph) -> tuple[str, ...]:
    """The tensors that go channel by channel: biases, norms, scales and slopes."""
    found = dict.fromkeys(linear.bias for linear in graph.maps if linear.bias is not None)
    for space in graph.spaces:
        for stage in space.stages:
            roles = [role for role in stage.params if (stage.kind, role) != ("depthwise", "weight")]
            found |= dict.fromkeys(stage.params[role] for role in roles)
    return tuple(found)


def fixed_residual(ours: Tensor, theirs: Tensor) -> float:
    """The worst relative residual of a tensor whose entries have no freedom: by row, or by entry of a single axis."""
    if ours.shape != theirs.shape:
        return float("inf")
    if ours.is_complex() and theirs.is_complex():
        ours, theirs = torch.view_as_real(ours.detach()), torch.view_as_real(theirs.detach())
    if not theirs.is_floating_point():
        return 0.0 if torch.equal(ours.cpu(), theirs.cpu()) else float("inf")
    if theirs.numel() == 0:
        return 0.0
    if theirs.ndim > 1:
        return float(row_residuals(ours, theirs, 0).max())
    mine, yours = ours.detach().double().cpu(), theirs.detach().double().cpu()
    scale = torch.clamp(yours.abs(), min=float(yours.square().mean().sqrt()) or EPSILON)
    return float(((mine - yours).abs() / scale).max())


def _floors(graph: ChannelGraph, tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """By tensor that goes channel by channel: the size of what it is added to, or zero where it is a factor."""
    found: dict[str, float] = {}
    for linear in graph.maps:
        if linear.bias is not None and linear.bias not in found:
            found[linear.bias] = _size(tensors[linear.weight]) * tensors[linear.weight][0].numel() ** 0.5
    for space in graph.spaces:
        for stage in space.stages:
            names = {role: name for role, name in stage.params.items() if name not in found}
            if stage.kind == "depthwise":
                names.pop("weight", None)
            spread = {"mean": "var", "bias": "weight"}
            for role, name in names.items():
                other = stage.params.get(spread.get(role, ""))
                size = 0.0 if other is None else _size(tensors[other])
                found[name] = size**0.5 if role == "mean" else size
    return found


def _size(tensor: Tensor) -> float:
    whole = float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64))
    return float(whole / max(1, tensor.numel()) ** 0.5)


def _flat(tensors: Sequence[Tensor]) -> Array:
    flat: Array = torch.cat([tensor.detach().double().flatten() for tensor in tensors]).cpu().numpy()
    return flat
