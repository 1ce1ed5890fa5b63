"""Fold constant channels into the biases of the layers that read them, where that is exact.

Exact means: every consumer has a bias, or a norm right behind it whose mean can take the offset up, and where it pads
with zeros, it reads the constant with such entries of its kernel alone as never stand on padding. A constant that one
consumer cannot take up stays for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from canon.graph import ChannelGraph, Consumer, LinearMap, Segment, Space, Stage
from canon.graph.tensors import shape_of
from canon.recovery.merge import Merged, kernel_of
from canon.recovery.partition import Classes


@dataclass(frozen=True, eq=False)
class Fold:
    """A consumer's offset that goes into the mean of the norm behind it."""

    stage: Stage
    offset: Tensor
    """Per row before the rewrite."""


@dataclass(frozen=True, eq=False)
class Folds:
    """All constants that are folded."""

    spaces: dict[int, Tensor]
    """By space id: which kept channels are folded."""

    columns: dict[int, Tensor]
    """By map index: which columns after the merge are folded."""

    offsets: dict[int, Tensor]
    """By map index: what to add to the bias, per row after the merge."""

    norms: list[Fold]
    """What to take off a norm's mean."""

    def means(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The changed means, in the layout before the rewrite."""
        changed: dict[str, Tensor] = {}
        for fold in self.norms:
            name = fold.stage.params["mean"]
            mean = changed.get(name, tensors[name].detach())
            offset = torch.zeros(mean.shape[0], dtype=torch.float64)
            offset[fold.stage.offset : fold.stage.offset + fold.offset.numel()] = fold.offset
            changed[name] = (mean.double() - offset.to(mean.device)).to(mean.dtype)
        return changed


def plan_folds(
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    classes: Mapping[int, Classes],
    leaders: Mapping[int, Tensor],
    merged: Mapping[int, Merged],
    guarded: Mapping[int, Tensor],
) -> Folds:
    """Which constants are folded, and where they go."""
    calls = _calls(graph)
    takers = {i: _taker(graph, m, calls) for i, m in enumerate(graph.maps) if calls[m.weight] == 1}
    folds = Folds({}, {}, {}, [])
    for space in graph.spaces:
        constant = classes[space.id].constant[leaders[space.id]] & ~guarded[space.id]
        exact = all(takers.get(c.map) is not None for c in space.consumers)
        if space.pins or not space.consumers or not exact or not bool(constant.any()):
            continue
        for consumer in space.consumers:
            if graph.maps[consumer.map].zero_padding:
                constant = constant & _inside(graph, consumer, merged[consumer.map], leaders, tensors)
        if bool(constant.all()) or not bool(constant.any()):
            continue  # nothing would be left, or nothing can go
        folds.spaces[space.id] = constant
    _offsets(graph, classes, leaders, merged, takers, folds)
    return folds


def _inside(
    graph: ChannelGraph,
    consumer: Consumer,
    merged: Merged,
    leaders: Mapping[int, Tensor],
    tensors: Mapping[str, Tensor],
) -> Tensor:
    """By kept channel: whether a layer reads it without ever reading the padding around it."""
    linear = graph.maps[consumer.map]
    count = leaders[segment_at(linear, consumer).space].numel()
    if linear.cropping is None:
        return torch.zeros(count, dtype=torch.bool)
    start = 0
    for segment in linear.columns or ():
        if segment.offset == consumer.offset:
            break
        start += leaders[segment.space].numel() * segment.repeat
    kernel = kernel_of(shape_of(tensors, linear.weight), linear)
    outside = torch.ones(kernel, dtype=torch.bool)
    outside[tuple(slice(pad, size - pad) for pad, size in zip(linear.cropping, kernel, strict=True))] = False
    columns = merged.weight[0, :, start : start + count * consumer.repeat]
    touched = (columns[..., outside.flatten().to(columns.device)] != 0).any(dim=2).any(dim=0)
    return ~touched.view(count, -1).any(dim=1).cpu()


def segment_at(linear: LinearMap, consumer: Consumer) -> Segment:
    """The stretch of a layer's input axis that a consumer reads."""
    return next(segment for segment in linear.columns or () if segment.offset == consumer.offset)


def _calls(graph: ChannelGraph) -> Counter[str]:
    """How often each tensor is used: what is used twice cannot take up what one use needs."""
    names = [linear.weight for linear in graph.maps] + [linear.bias for linear in graph.maps if linear.bias is not None]
    stages = {(stage.node, name) for space in graph.spaces for stage in space.stages for name in stage.params.values()}
    return Counter([*names, *(name for _, name in stages)])


def _taker(graph: ChannelGraph, linear: LinearMap, calls: Counter[str]) -> str | Stage | None:
    """Where a layer's offset can go: its bias, the norm behind it, or nowhere."""
    if linear.groups > 1 or (linear.zero_padding and linear.cropping is None):
        return None
    if linear.bias is not None:
        return linear.bias if calls[linear.bias] == 1 else None
    if len(linear.rows) != 1 or linear.rows[0].repeat != 1:
        return None
    point, space = linear.rows[0].point, graph.spaces[linear.rows[0].space]
    norm = _norm_behind(space, point)
    return norm if norm is not None and calls[norm.params["mean"]] == 1 else None


def _norm_behind(space: Space, point: int) -> Stage | None:
    readers = [stage for stage in space.stages if point in stage.inputs]
    read = any(consumer.point == point for consumer in space.consumers)
    if read or len(readers) != 1 or readers[0].kind != "norm" or space.pins:
        return None
    return readers[0]


def _offsets(
    graph: ChannelGraph,
    classes: Mapping[int, Classes],
    leaders: Mapping[int, Tensor],
    merged: Mapping[int, Merged],
    takers: Mapping[int, str | Stage | None],
    folds: Folds,
) -> None:
    for index, linear in enumerate(graph.maps):
        if not any(s.space in folds.spaces for s in linear.columns or ()):
            continue
        gone, value = [], []
        for s in linear.columns or ():
            kept = leaders[s.space]
            none = torch.zeros(kept.numel(), dtype=torch.bool)
            fold = folds.spaces.get(s.space, none)
            known = classes[s.space].values.get(s.point)
            level = torch.zeros(kept.numel(), dtype=torch.float64)
            if known is not None:
                level = torch.where(fold, known[kept].nan_to_num(), level)
            gone.append(fold.repeat_interleave(s.repeat))
            value.append(level.repeat_interleave(s.repeat))
        folds.columns[index] = torch.cat(gone)
        weight = merged[index].weight[0]
        summed = weight.double().sum(-1)
        offset = (summed @ torch.cat(value).to(weight.device)).cpu()
        taker = takers[index]
        if isinstance(taker, Stage):
            width = graph.spaces[taker.space].width
            full = torch.zeros(width, dtype=torch.float64)
            full[leaders[taker.space]] = offset
            folds.norms.append(Fold(taker, full))
        else:
            folds.offsets[index] = offset
