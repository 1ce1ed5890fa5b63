"""Reductions over axes, and what chooses among positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.values import Constant, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

_REDUCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "ReduceMean": torch.mean, "ReduceSum": torch.sum, "ReduceMax": torch.amax, "ReduceMin": torch.amin,
    "ReduceLogSumExp": torch.logsumexp,
}  # fmt: skip


def axes_of(node: Node, given: Value | None, name: str = "axes") -> list[int] | None:
    """Axes, which older versions give as an attribute and newer ones as an operand."""
    if given is None:
        return node.integers(name)
    if not isinstance(given, Constant):
        raise UnsupportedModelError("axes that are computed")
    return given.integers()


@operator("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceLogSumExp", "ReduceL1", "ReduceL2",
          "ReduceSumSquare", "ReduceProd")  # fmt: skip
def reduce(b: Builder, node: Node, x: Value, axes: Value | None = None) -> Result:
    """A reduction over some axes or all."""
    chosen, keep = axes_of(node, axes), bool(node.integer("keepdims", 1))
    rank = x.rank if not isinstance(x, Constant) else x.tensor.ndim  # type: ignore[union-attr]
    if not chosen:
        if node.integer("noop_with_empty_axes", 0):
            return x
        chosen = list(range(rank))
    chosen = [axis % rank for axis in chosen] if rank else []
    if node.op in _REDUCTIONS:
        return b.call(_REDUCTIONS[node.op], x, chosen, keep)
    if node.op == "ReduceProd":
        for axis in sorted(chosen, reverse=True):
            x = b.call(torch.prod, x, axis, keep)
        return x
    inner = b.call(torch.abs, x) if node.op == "ReduceL1" else b.call(torch.mul, x, x)
    total = b.call(torch.sum, inner, chosen, keep)
    return b.call(torch.sqrt, total) if node.op == "ReduceL2" else total


@operator("ArgMax", "ArgMin")
def extreme(b: Builder, node: Node, x: Value) -> Result:
    """Where the largest or smallest value stands."""
    if node.integer("select_last_index", 0):
        raise UnsupportedModelError("the last of several largest values")
    function = torch.argmax if node.op == "ArgMax" else torch.argmin
    return b.call(function, x, node.integer("axis", 0), bool(node.integer("keepdims", 1)))


@operator("TopK")
def top_k(b: Builder, node: Node, x: Value, count: Value) -> Result:
    """The largest or smallest values of an axis and where they stand."""
    if not isinstance(count, Constant):
        raise UnsupportedModelError("a number of largest values that is computed")
    (number,) = count.integers()
    axis, largest = node.integer("axis", -1), bool(node.integer("largest", 1))
    # Of equal values the first counts, which torch.topk does not promise.
    ordered = b.call(torch.sort, x, stable=True, dim=axis, descending=largest)
    return [b.call(torch.narrow, part, axis, 0, number) for part in ordered]


@operator("CumSum")
def cumulative_sum(b: Builder, node: Node, x: Value, axis: Value) -> Result:
    """Running sums along an axis."""
    if node.integer("exclusive", 0) or node.integer("reverse", 0) or not isinstance(axis, Constant):
        raise UnsupportedModelError("a running sum that is exclusive, reversed, or over a computed axis")
    return b.call(torch.cumsum, x, int(axis.tensor))


@operator("LpNormalization")
def normalize(b: Builder, node: Node, x: Value) -> Result:
    """Divided by the norm along an axis."""
    function = torch.nn.functional.normalize
    return b.call(function, x, float(node.integer("p", 2)), node.integer("axis", -1))
