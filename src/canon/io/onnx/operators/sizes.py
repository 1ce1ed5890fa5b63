"""Arithmetic with sizes of activations, done entry by entry so that a shape stays a list of plain sizes."""

from __future__ import annotations

import operator as python
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from canon.io.onnx.model import Node
from canon.io.onnx.operators.reducing import axes_of
from canon.io.onnx.values import Constant, Size, Sizes, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

_ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "Add": python.add, "Sub": python.sub, "Mul": python.mul, "Div": python.floordiv,
}  # fmt: skip
TAKE_SIZES: Final = frozenset(
    {"Reshape", "Expand", "Tile", "Slice", "Split", "Resize", "ConstantOfShape", "Range", "Shape", "Size"}
)
"""Operators that take sizes which are only known when the model runs."""

_KEPT: Final = frozenset({"Identity", "Floor", "Ceil", "Unsqueeze", "Squeeze", "Reshape", "Cast"})


def on_sizes(b: Builder, node: Node, operands: list[Value | None]) -> Sizes | Constant | None:
    """The result of an operator on sizes; None where it is not one of these, or not a list of sizes."""
    given = [_sizes(value) for value in operands]
    first = given[0] if given else None
    if first is None:
        return None
    if node.op == "Cast" and node.integer("to", 7) not in (6, 7):
        return None
    if node.op in _KEPT and isinstance(operands[0], Sizes):
        return Sizes(first.items, node.op == "Squeeze" or (first.scalar and node.op not in ("Unsqueeze", "Reshape")))
    if node.op == "Gather" and isinstance(operands[0], Sizes) and given[1] is not None:
        chosen = [first.items[int(i)] for i in given[1].items if isinstance(i, int)]
        return Sizes(tuple(chosen), given[1].scalar) if len(chosen) == len(given[1].items) else None
    if node.op == "Slice" and isinstance(operands[0], Sizes):
        return _slice(node, first, operands)
    if node.op == "Concat" and all(sizes is not None for sizes in given):
        return Sizes(tuple(item for sizes in given if sizes is not None for item in sizes.items))
    if node.op == "ReduceProd" and isinstance(operands[0], Sizes):
        total: Any = 1
        for item in first.items:
            total = item if total == 1 else _combine(b, python.mul, total, item)
        return Sizes((total,), not node.integer("keepdims", 1))
    if node.op in _ARITHMETIC and len(given) == 2 and given[1] is not None:
        return _elementwise(b, _ARITHMETIC[node.op], first, given[1])
    return None


def _sizes(value: Value | None) -> Sizes | None:
    if isinstance(value, Sizes):
        return value
    if not isinstance(value, Constant) or value.tensor.dtype not in (torch.int64, torch.int32):
        return None
    short = value.rank <= 1 and value.tensor.numel() <= 64
    return Sizes(tuple(value.integers()), value.rank == 0) if short else None


def _slice(node: Node, sizes: Sizes, operands: list[Value | None]) -> Sizes | None:
    starts = axes_of(node, operands[1] if len(operands) > 1 else None, "starts")
    ends = axes_of(node, operands[2] if len(operands) > 2 else None, "ends")
    steps = axes_of(node, operands[4] if len(operands) > 4 else None, "steps") or [1]
    if starts is None or ends is None or not len(starts) == len(ends) == len(steps) == 1:
        return None
    return Sizes(sizes.items[slice(starts[0], ends[0], steps[0])])


def _elementwise(b: Builder, function: Callable[[Any, Any], Any], first: Sizes, second: Sizes) -> Sizes | None:
    longest = max(len(first.items), len(second.items))
    if len(first.items) not in (1, longest) or len(second.items) not in (1, longest):
        return None
    pairs = [(first.items[i % len(first.items)], second.items[i % len(second.items)]) for i in range(longest)]
    return Sizes(tuple(_combine(b, function, x, y) for x, y in pairs), first.scalar and second.scalar)


def _combine(b: Builder, function: Callable[[Any, Any], Any], x: int | Size, y: int | Size) -> int | Size:
    numbers = [item if isinstance(item, int) else item.number for item in (x, y)]
    if numbers[0] is not None and numbers[1] is not None:
        if function is python.mul and isinstance(x, Size) != isinstance(y, Size):
            pass  # a width times a number of positions follows the width
        else:
            return int(function(*numbers))
    arguments = tuple(item.node if isinstance(item, Size) else item for item in (x, y))
    hints = [function(*(item.hints[i] if isinstance(item, Size) else item for item in (x, y))) for i in range(2)]
    return Size(b.assembly.graph.call_function(function, arguments), (int(hints[0]), int(hints[1])))
