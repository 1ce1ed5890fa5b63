"""How far the extracted model's rows are from the owner's, row by row, relative to each row's own size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from canon._memory import scratch
from canon.graph import ChannelGraph, LinearMap
from canon.verify.traced import Traced

LONG: Final = 8
"""Weights that a row needs so that none agrees with it by accident."""

PIECE: Final = 1 << 18
"""Weights compared at a time."""


def layer_residuals(ours: Traced, theirs: Traced, silent: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """By layer: for every row its distance from the owner's, relative to the owner's row.

    Args:
        ours: The extracted model, in the owner's layout.
        theirs: The owner's model.
        silent: By space: the owner's channels that never change, so that no column that reads them says anything.
    """
    graph = theirs.graph
    found = {}
    for linear in graph.maps:
        mine, yours = ours.tensors[linear.weight], theirs.tensors[linear.weight]
        if mine.shape != yours.shape:  # a head of another task
            found[linear.name] = torch.ones(yours.shape[linear.row_axis], dtype=torch.float64)
            continue
        found[linear.name] = _distances(mine, yours, linear.row_axis, _heard(linear, yours, silent))
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == "depthwise":
                name = stage.params["weight"]
                found[name.removesuffix(".weight")] = _distances(ours.tensors[name], theirs.tensors[name], stage.axis)
    return found


def _heard(linear: LinearMap, weight: Tensor, silent: Mapping[int, Tensor]) -> Tensor | None:
    """`rows x columns` or `1 x columns`: 0 for columns that read silent channels; None: there are none."""
    if not any(bool(silent[s.space].any()) for s in linear.columns or () if s.space in silent):
        return None
    parts = []
    for segment in linear.columns or ():
        quiet = silent.get(segment.space, torch.zeros(segment.length // segment.repeat, dtype=torch.bool))
        parts.append((~quiet).double().repeat_interleave(segment.repeat))
    heard = torch.cat(parts)
    if linear.groups == 1:
        return heard[None]
    each = weight.shape[linear.row_axis] // linear.groups
    return heard.view(linear.groups, -1).repeat_interleave(each, dim=0)


def _distances(mine: Tensor, yours: Tensor, axis: int, heard: Tensor | None = None) -> Tensor:
    first, second = (weight.detach().movedim(axis, 0) for weight in (mine, yours))
    count = second.shape[0]
    entries = second[0].numel()
    step = min(count, max(1, PIECE // max(1, entries)))
    narrow = all(weight.element_size() < 4 for weight in (first, second))  # float32 holds their differences
    gap, size = scratch((2, step, entries), torch.float32 if narrow else torch.float64, second.device)
    found = []
    for start in range(0, count, step):
        used = min(step, count - start)
        gap[:used].copy_(first[start : start + used].reshape(used, -1))
        size[:used].copy_(second[start : start + used].reshape(used, -1))
        gap[:used].sub_(size[:used])
        if heard is not None:
            chosen = heard if heard.shape[0] == 1 else heard[start : start + used]
            wide = chosen.repeat_interleave(entries // chosen.shape[1], dim=1).to(gap.device)
            gap[:used].mul_(wide)
            size[:used].mul_(wide)
        distance, norm = (torch.linalg.vector_norm(part[:used], dim=1) for part in (gap, size))
        distance, norm = distance.double(), norm.double()
        found.append(torch.where(distance == 0, 0.0, distance / norm.clamp(min=1e-300)).clamp(max=1e6))
    return torch.cat(found).cpu()


def by_space(graph: ChannelGraph, tensors: Mapping[str, Tensor], residuals: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """For every channel its largest residual over the layers that make it; 1 where their rows are too short to say."""
    found: dict[int, Tensor] = {}
    for space in graph.spaces:
        worst, entries = torch.zeros(space.width, dtype=torch.float64), 0
        for producer in space.producers:
            linear = graph.maps[producer.map]
            rows = residuals[linear.name][producer.offset : producer.offset + space.width * producer.repeat]
            if rows.numel() == space.width * producer.repeat:
                worst = torch.maximum(worst, rows.view(space.width, -1).amax(dim=1))
                weight = tensors[linear.weight]
                entries += weight.numel() // weight.shape[linear.row_axis]
        found[space.id] = worst if entries >= LONG else torch.ones_like(worst)
    return found


def channels_of(graph: ChannelGraph) -> dict[str, tuple[tuple[int, int], ...]]:
    """By layer: the spaces that its rows belong to, and how many rows each channel has there."""
    found = {linear.name: tuple((s.space, s.repeat) for s in linear.rows) for linear in graph.maps}
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == "depthwise":
                name = stage.params["weight"].removesuffix(".weight")
                found[name] = (*found.get(name, ()), (space.id, stage.repeat))
    return found
