"""`W·b`: what layers read of constants that are gone, and what takes it up instead.

That is the layer's bias, or the mean of a norm right behind it or behind a sum with it, unless something else uses
these as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from canon.graph import ChannelGraph, LinearMap, Space, Stage
from canon.rewrite.axes import by_row, repeated
from canon.rewrite.spec import SpaceRewrite

Taker = str | Stage | None
"""What takes up an offset: a bias by name, a norm, or nothing."""


@dataclass(frozen=True, eq=False)
class Offsets:
    """What is added where."""

    layers: dict[int, Tensor] = field(default_factory=dict)
    """By number of a map: what to add to its bias, per row before."""

    means: dict[str, Tensor] = field(default_factory=dict)
    """By name: means of norms with the offset taken off, in the layout before."""


def offsets(tensors: Mapping[str, Tensor], graph: ChannelGraph, rewrites: Mapping[int, SpaceRewrite]) -> Offsets:
    """What layers must add for constants that rewrites take away. Whoever takes some away has asked for the takers."""
    found = Offsets()
    if not any(rewrite.constants for rewrite in rewrites.values()):
        return found
    taken = takers(graph)
    for index, linear in enumerate(graph.maps):
        values, some = [], False
        for segment in linear.columns or ():
            rewrite = rewrites.get(segment.space)
            level = None if rewrite is None else rewrite.constants.get(segment.point)
            some = some or level is not None
            level = torch.zeros(segment.length // segment.repeat, dtype=torch.float64) if level is None else level
            values.append(repeated(level, segment.repeat))
        if not some:
            continue
        weight = by_row(tensors[linear.weight], linear)
        offset = (weight.double().sum(-1) @ torch.cat(values).to(weight.device)).cpu()
        taker = taken[index]
        if not isinstance(taker, Stage):
            found.layers[index] = offset
            continue
        name = taker.params["mean"]
        mean = found.means.get(name, tensors[name].detach())
        whole = torch.zeros(mean.shape[0], dtype=torch.float64)
        whole[taker.offset : taker.offset + offset.numel()] = offset
        found.means[name] = (mean.double() - whole.to(mean.device)).to(mean.dtype)
    return found


def takers(graph: ChannelGraph) -> dict[int, Taker]:
    """By number of a map: what can take up an offset."""
    names = [name for linear in graph.maps for name in (linear.weight, linear.bias) if name is not None]
    stages = {(stage.node, name) for space in graph.spaces for stage in space.stages for name in stage.params.values()}
    uses = Counter([*names, *(name for _, name in stages)])  # what is used twice cannot take up what one use needs
    return {i: _taker(graph, linear, uses) for i, linear in enumerate(graph.maps)}


def _taker(graph: ChannelGraph, linear: LinearMap, uses: Counter[str]) -> Taker:
    if uses[linear.weight] > 1 or linear.groups > 1 or (linear.zero_padding and linear.cropping is None):
        return None
    if linear.bias is not None:
        return linear.bias if uses[linear.bias] == 1 else None
    if len(linear.rows) != 1 or linear.rows[0].repeat != 1:
        return None
    space = graph.spaces[linear.rows[0].space]
    norm = None if space.pins else _norm_behind(space, linear.rows[0].point)
    return norm if norm is not None and uses[norm.params["mean"]] == 1 else None


def _norm_behind(space: Space, point: int) -> Stage | None:
    """The norm that alone reads a point, or a sum of it and others."""
    read = any(consumer.point == point for consumer in space.consumers)
    readers = [stage for stage in space.stages if point in stage.inputs]
    if read or len(readers) != 1 or readers[0].kind not in ("norm", "add") or readers[0].inputs.count(point) > 1:
        return None
    return readers[0] if readers[0].kind == "norm" else _norm_behind(space, readers[0].output)
