"""Data movement. Sizes that a reshape keeps are written as sizes of its operand, so that they follow a rewrite."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.reducing import axes_of
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.values import Activation, Constant, Size, Sizes, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

Shape = tuple[int, ...]


@operator("Flatten")
def flatten(b: Builder, node: Node, x: Value) -> Result:
    """Two axes: all before one axis, and all from it on."""
    x = b.activation(x)
    axis = node.integer("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    if axis == 0:
        return b.call(torch.unsqueeze, b.call(torch.flatten, x), 0)
    if axis == x.rank:
        return b.call(torch.unsqueeze, b.call(torch.flatten, x), 1)
    result = x if axis == x.rank - 1 else b.call(torch.flatten, x, axis)
    return result if axis == 1 else b.call(torch.flatten, result, 0, axis - 1)


@operator("Reshape")
def reshape(b: Builder, node: Node, x: Value, shape: Value | None = None) -> Result:
    """Another shape: a flatten where it is one, and otherwise with as few numbers written in as possible."""
    given: list[Any] = sizes_of(shape) if shape is not None else node.integers("shape") or []
    if isinstance(x, Constant):
        numbers = [item if isinstance(item, int) else item.number for item in given]
        if any(number is None for number in numbers):
            return b.call(torch.reshape, b.activation(x), given)
        return b.call(torch.reshape, x, _copied(numbers, x.tensor.shape, node))
    x = b.activation(x)
    after = [_target(given, hint.shape, index, node) for index, hint in enumerate(x.hints)]
    before = [tuple(int(s) for s in hint.shape) for hint in x.hints]
    if after == before:
        return x
    stretch = _flattened(before, after)
    if stretch is not None:
        return b.call(torch.flatten, x, *stretch)
    return b.call(torch.reshape, x, _sizes(b, x, given, before, after, node))


def sizes_of(value: Value) -> list[Any]:
    """The entries of a shape."""
    if isinstance(value, Sizes):
        return list(value.items)
    if not isinstance(value, Constant):
        raise UnsupportedModelError("a shape that is computed from values")
    return value.integers()


def _copied(given: list[Any], before: Any, node: Node) -> list[Any]:
    """Zeros stand for the size that the operand has there."""
    if node.integer("allowzero", 0):
        return given
    return [before[i] if isinstance(item, int) and item == 0 else item for i, item in enumerate(given)]


def _target(given: list[Any], before: Any, index: int, node: Node) -> Shape:
    """The new shape for one choice of open sizes."""
    numbers = [item.hints[index] if isinstance(item, Size) else item for item in given]
    numbers = [int(n) for n in _copied(numbers, before, node)]
    known = prod(n for n in numbers if n != -1)
    if numbers.count(-1) == 1 and known:
        numbers[numbers.index(-1)] = prod(before) // known
    if prod(numbers) != prod(before) or any(n < 0 for n in numbers):
        raise ValueError(f"shape {tuple(before)} cannot become {tuple(numbers)}")
    return tuple(numbers)


def _flattened(before: list[Shape], after: list[Shape]) -> tuple[int, int] | None:
    """The first and last of the axes that become one, where that is all that happens."""
    rank, fewer = len(before[0]), len(before[0]) - len(after[0])
    if fewer < 1:
        return None
    for start in range(rank - fewer):
        stop = start + fewer + 1
        pairs = zip(before, after, strict=True)
        if all((*old[:start], prod(old[start:stop]), *old[stop:]) == new for old, new in pairs):
            return start, stop - 1
    return None


def _sizes(
    b: Builder, x: Activation, given: list[Any], before: list[Shape], after: list[Shape], node: Node
) -> list[Any]:
    """The entries of the new shape: those that an axis of the operand keeps are read from it."""
    result: list[Any] = list(given)
    for new in range(len(given)):
        for old in range(x.rank):
            kept = all(prod(a[:new]) == prod(o[:old]) and a[new] == o[old] for o, a in zip(before, after, strict=True))
            if kept and not isinstance(result[new], Size):
                result[new] = b.size(x, old)
                break
    written = [i for i, item in enumerate(result) if not isinstance(item, Size)]
    if len(written) == 1:
        result[written[0]] = -1
    return [after[0][i] if isinstance(item, int) and item == 0 else item for i, item in enumerate(result)]


@operator("Transpose")
def transpose(b: Builder, node: Node, x: Value) -> Result:
    """Axes in another order; reversed where nothing is said."""
    rank = x.tensor.ndim if isinstance(x, Constant) else b.activation(x).rank
    order = node.integers("perm") or list(reversed(range(rank)))
    return permuted(b, x, [axis % rank for axis in order])


def permuted(b: Builder, x: Value, order: list[int]) -> Result:
    """Axes in another order; two such steps, one right behind the other, are one."""
    if isinstance(x, Activation) and x.node.target is torch.permute:
        source, inner = x.node.args
        known = b.known(source)  # type: ignore[arg-type]
        if known is not None:
            x, order = known, [int(inner[axis]) for axis in order]  # type: ignore[index,arg-type]
    return x if order == list(range(len(order))) else b.call(torch.permute, x, order)


@operator("Squeeze")
def squeeze(b: Builder, node: Node, x: Value, axes: Value | None = None) -> Result:
    """Axes of size one go."""
    chosen = axes_of(node, axes)
    return b.call(torch.squeeze, x) if chosen is None else b.call(torch.squeeze, x, tuple(chosen))


@operator("Unsqueeze")
def unsqueeze(b: Builder, node: Node, x: Value, axes: Value | None = None) -> Result:
    """Axes of size one come."""
    chosen = axes_of(node, axes) or []
    rank = (x.tensor.ndim if isinstance(x, Constant) else b.activation(x).rank) + len(chosen)
    for axis in sorted(a + rank if a < 0 else a for a in chosen):
        x = b.call(torch.unsqueeze, x, axis)
    return x


@operator("Concat")
def concat(b: Builder, node: Node, *values: Value) -> Result:
    """Side by side along an axis."""
    filled = [v for v in values if not (isinstance(v, Constant) and v.tensor.numel() == 0 and v.rank == 1)]
    if len(filled) == 1:
        return filled[0]
    return b.call(torch.cat, filled or list(values), node.integer("axis", 0))


@operator("Expand")
def expand(b: Builder, node: Node, x: Value, shape: Value) -> Result:
    """Broadcast to a shape, in which ones stand for what the operand has."""
    target = sizes_of(shape)
    rank = x.rank if isinstance(x, (Constant, Activation)) else 1
    if len(target) < rank:
        target = [1] * (rank - len(target)) + target
    own = x.tensor.shape if isinstance(x, Constant) else b.activation(x).hints[0].shape
    sizes: list[Any] = []
    for index, size in enumerate(target):
        old = index - (len(target) - rank)
        same = isinstance(size, int) and (size == 1 or (old >= 0 and size == own[old]))
        sizes.append(-1 if old >= 0 and same else size)
    if all(size == -1 for size in sizes):
        return x
    return b.call("expand", x, sizes)


@operator("Tile")
def tile(b: Builder, node: Node, x: Value, repeats: Value) -> Result:
    """Repeated along every axis."""
    counts = sizes_of(repeats)
    return x if all(count == 1 for count in counts) else b.call("repeat", x, counts)


@operator("Trilu")
def triangle(b: Builder, node: Node, x: Value, diagonal: Value | None = None) -> Result:
    """The upper or lower triangle of matrices."""
    if diagonal is not None and not isinstance(diagonal, Constant):
        raise UnsupportedModelError("a diagonal that is computed")
    offset = 0 if diagonal is None else int(diagonal.tensor)
    return b.call(torch.triu if node.integer("upper", 1) else torch.tril, x, offset)
