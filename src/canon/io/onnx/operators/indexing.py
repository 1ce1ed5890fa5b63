"""Parts of tensors: slices, splits and chosen entries."""

from __future__ import annotations

import operator as python
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.reducing import axes_of
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.operators.shaping import sizes_of
from canon.io.onnx.values import Constant, Size, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

FAR = 1 << 31
"""Ends of slices at least this far away mean the end of the axis."""


@operator("Slice")
def slices(
    b: Builder,
    node: Node,
    x: Value,
    starts: Value | None = None,
    ends: Value | None = None,
    axes: Value | None = None,
    steps: Value | None = None,
) -> Result:
    """A stretch of some axes."""
    first: list[Any] = sizes_of(starts) if starts is not None else node.integers("starts") or []
    last: list[Any] = sizes_of(ends) if ends is not None else node.integers("ends") or []
    rank = x.tensor.ndim if isinstance(x, Constant) else b.activation(x).rank
    chosen = axes_of(node, axes) or list(range(len(first)))
    pace = sizes_of(steps) if steps is not None else [1] * len(first)
    if not len(first) == len(last) == len(chosen) == len(pace):
        raise ValueError("starts, ends, axes and steps are of different lengths")
    parts: list[Any] = [slice(None)] * rank
    flipped = []
    for begin, end, axis, step in zip(first, last, chosen, pace, strict=True):
        if not isinstance(step, int) or step == 0:
            raise UnsupportedModelError("a slice with a computed step")
        if step < 0:
            if step != -1 or not _whole(begin, end):
                raise UnsupportedModelError("a slice that goes backwards over part of an axis")
            flipped.append(axis % rank)
            continue
        begin = begin if isinstance(begin, Size) or begin else None
        end = None if isinstance(end, int) and end >= FAR - 1 else end
        known = _size(b, x, axis)
        if isinstance(end, int) and known is not None and end >= known:
            end = None
        if isinstance(end, Size) and end.number is not None:
            end = end.number if known is None or end.number < known else None
        parts[axis % rank] = slice(begin, end, None if step == 1 else step)
    if flipped:
        x = b.call(torch.flip, x, flipped)
    while parts and parts[-1] == slice(None):
        parts.pop()
    return b.call(python.getitem, x, tuple(parts)) if parts else x


def _whole(begin: Any, end: Any) -> bool:
    return isinstance(begin, int) and isinstance(end, int) and (begin == -1 or begin >= FAR - 1) and end <= -FAR


def _size(b: Builder, x: Value, axis: int) -> int | None:
    return x.tensor.shape[axis] if isinstance(x, Constant) else b.activation(x).size(axis)


@operator("Split")
def split(b: Builder, node: Node, x: Value, sizes: Value | None = None) -> Result:
    """Stretches of an axis; equal ones as a chunk, which has no sizes written in."""
    axis, count = node.integer("axis", 0), len(node.outputs)
    given = sizes_of(sizes) if sizes is not None else node.integers("split")
    size = _size(b, x, axis)
    if size is None:
        raise UnsupportedModelError("a split of an axis of open size")
    given = given or [-(-size // count)] * (count - 1) + [size - -(-size // count) * (count - 1)]
    given = [item if isinstance(item, int) else item.number for item in given]
    if len(given) != count or any(item is None or item < 0 for item in given) or sum(given) != size:
        raise ValueError(f"an axis of {size} cannot be split into {given}")
    if len(set(given)) == 1 and given[0]:
        return b.call(torch.chunk, x, count, axis) if count > 1 else x
    return b.call(torch.split, x, given, axis)


@operator("Gather")
def gather(b: Builder, node: Node, x: Value, indices: Value) -> Result:
    """Chosen entries of an axis."""
    axis = node.integer("axis", 0)
    if isinstance(indices, Constant):
        rank = x.tensor.ndim if isinstance(x, Constant) else b.activation(x).rank
        axis = axis % rank
        if indices.rank == 0:
            return b.call(torch.select, x, axis, int(indices.tensor))
        size = _size(b, x, axis)
        chosen = indices.tensor.long()
        if size is not None and chosen.numel() and not -size <= int(chosen.min()) <= int(chosen.max()) < size:
            raise ValueError("an index lies outside of the axis")
        if size is not None:
            chosen = torch.where(chosen < 0, chosen + size, chosen)
        picked = b.call(torch.index_select, x, axis, Constant(chosen.reshape(-1)))
        return picked if indices.rank == 1 else b.call(torch.unflatten, picked, axis, tuple(chosen.shape))
    if isinstance(x, Constant) and axis == 0 and x.rank == 2:
        return b.call(functional.embedding, indices, x)
    raise UnsupportedModelError("entries chosen by computed numbers")


@operator("GatherElements")
def gather_elements(b: Builder, node: Node, x: Value, indices: Value) -> Result:
    """For every place an entry along an axis."""
    size = _size(b, x, node.integer("axis", 0))
    if isinstance(indices, Constant) and size is not None:
        indices = Constant(torch.where(indices.tensor < 0, indices.tensor + size, indices.tensor).long())
    return b.call(torch.gather, x, node.integer("axis", 0), indices)


@operator("OneHot")
def one_hot(b: Builder, node: Node, indices: Value, depth: Value, values: Value) -> Result:
    """Numbers as unit vectors."""
    if not isinstance(depth, Constant) or not isinstance(values, Constant) or node.integer("axis", -1) != -1:
        raise UnsupportedModelError("unit vectors of a computed length or along another axis")
    off, on = values.tensor.tolist()
    if (off, on) != (0, 1):
        raise UnsupportedModelError("unit vectors with other numbers than zero and one")
    classes = b.call(torch.arange, int(depth.tensor))
    equal = b.call(torch.eq, b.call(torch.unsqueeze, indices, -1), classes)
    return b.call("to", equal, values.tensor.dtype)


@operator("ScatterElements")
def scatter_elements(b: Builder, node: Node, x: Value, indices: Value, updates: Value) -> Result:
    """Single entries of an axis replaced."""
    if node.text("reduction", "none") != "none":
        raise UnsupportedModelError("entries that are added to others")
    axis = node.integer("axis", 0)
    size = _size(b, x, axis)
    places = b.call("to", indices, torch.int64)
    if isinstance(places, Constant) and size is not None:
        places = Constant(torch.where(places.tensor < 0, places.tensor + size, places.tensor))
    return b.call(torch.scatter, x, axis, places, updates)
