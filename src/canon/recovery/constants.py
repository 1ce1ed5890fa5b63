"""Which constant channels go into the biases of the layers that read them, where that is exact.

Exact means: every consumer has a bias, or a norm right behind it whose mean can take the offset up, and where it pads
with zeros, it reads the constant with such entries of its kernel alone as never stand on padding. A constant that one
consumer cannot take up stays for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from canon.graph import ChannelGraph, LinearMap
from canon.graph.tensors import shape_of
from canon.recovery.merge import Merged
from canon.recovery.partition import Classes
from canon.rewrite.axes import kernel_of
from canon.rewrite.offsets import takers

NOTHING: Final = 4e-5
"""This part of a column's largest entry is next to nothing."""


def foldable(
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    classes: Mapping[int, Classes],
    leaders: Mapping[int, Tensor],
    merged: Mapping[int, Merged],
    guarded: Mapping[int, Tensor],
) -> dict[int, Tensor]:
    """By space id that has any: which kept channels are constants that go into biases."""
    constants = {s.id: classes[s.id].constant[leaders[s.id]] & ~guarded[s.id] for s in graph.spaces if not s.pins}
    constants = {index: constant for index, constant in constants.items() if bool(constant.any())}
    taken, found = takers(graph) if constants else {}, {}
    for index, constant in constants.items():
        consumers = graph.spaces[index].consumers
        read = [c for c in consumers if not _unread(graph, tensors, graph.maps[c.map])]
        if not consumers or any(taken[consumer.map] is None for consumer in read):
            continue
        for consumer in read:
            linear = graph.maps[consumer.map]
            if linear.zero_padding:
                start = starts(linear, leaders)[consumer.offset]
                columns = merged[consumer.map].weight[0, :, start : start + constant.numel() * consumer.repeat]
                constant = constant & _inside(columns, linear, shape_of(tensors, linear.weight), constant.numel())
        if bool(constant.any()) and not bool(constant.all()):  # something must be left
            found[index] = constant
    return found


def _unread(graph: ChannelGraph, tensors: Mapping[str, Tensor], linear: LinearMap) -> bool:
    """Whether nothing reads what a layer makes: all its readers hold zeros, as those of a branch that has cancelled."""
    spaces = [graph.spaces[segment.space] for segment in linear.rows]
    readers = {graph.maps[c.map].weight for space in spaces for c in space.consumers}
    pinned = any(space.pins or not space.consumers for space in spaces)
    return not pinned and not any(bool(tensors[name].any()) for name in readers)


def starts(linear: LinearMap, kept: Mapping[int, Tensor]) -> dict[int, int]:
    """By where a stretch of a layer's columns starts before the merge: where it starts after it."""
    found, start = {}, 0
    for segment in linear.columns or ():
        found[segment.offset] = start
        start += kept[segment.space].numel() * segment.repeat
    return found


def _inside(columns: Tensor, linear: LinearMap, shape: torch.Size, count: int) -> Tensor:
    """By kept channel: whether a layer reads it without ever reading the padding around it."""
    kernel = kernel_of(shape, linear)
    outside = torch.ones(kernel, dtype=torch.bool)
    outside[tuple(slice(pad, size - pad) for pad, size in zip(linear.cropping or (), kernel, strict=True))] = False
    # What noise has left there is nothing beside the entries that read it.
    sizes = columns.abs()
    beside = (sizes * outside.flatten().to(sizes)).amax(dim=(0, 2))
    touched = beside > NOTHING * sizes.amax(dim=(0, 2))
    return ~touched.view(count, -1).any(dim=1).cpu()
