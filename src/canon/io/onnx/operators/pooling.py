"""Pools: the largest or mean value of a window, or of all positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch.nn import functional

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.operators.windows import window
from canon.io.onnx.values import Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

_MAX: Final = {3: functional.max_pool1d, 4: functional.max_pool2d, 5: functional.max_pool3d}
_MEAN: Final = {3: functional.avg_pool1d, 4: functional.avg_pool2d, 5: functional.avg_pool3d}
_ALL: Final[dict[tuple[str, int], Any]] = {
    ("GlobalAveragePool", 3): functional.adaptive_avg_pool1d,
    ("GlobalAveragePool", 4): functional.adaptive_avg_pool2d,
    ("GlobalAveragePool", 5): functional.adaptive_avg_pool3d,
    ("GlobalMaxPool", 3): functional.adaptive_max_pool1d,
    ("GlobalMaxPool", 4): functional.adaptive_max_pool2d,
    ("GlobalMaxPool", 5): functional.adaptive_max_pool3d,
}


@operator("MaxPool")
def max_pool(b: Builder, node: Node, x: Value) -> Result:
    """The largest value of every window; padding never is."""
    x = b.activation(x)
    found = window(node, x, node.integers("kernel_shape") or [])
    padded = found.pad(b, x, float("-inf"))
    ceil = bool(node.integer("ceil_mode", 0))
    return b.call(_MAX[x.rank], padded, found.kernel, found.stride, found.padding, found.dilation, ceil)


@operator("AveragePool")
def average_pool(b: Builder, node: Node, x: Value) -> Result:
    """The mean of every window, with or without what was padded."""
    x = b.activation(x)
    found = window(node, x, node.integers("kernel_shape") or [])
    counted = bool(node.integer("count_include_pad", 0))
    if any(d > 1 for d in found.dilation) or not (found.even or counted):
        raise UnsupportedModelError("a mean over windows with dilation or uneven padding")
    padded = found.pad(b, x, 0.0)
    ceil = bool(node.integer("ceil_mode", 0))
    return b.call(_MEAN[x.rank], padded, found.kernel, found.stride, found.padding, ceil, counted)


@operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(b: Builder, node: Node, x: Value) -> Result:
    """The mean or largest value of all positions."""
    x = b.activation(x)
    return b.call(_ALL[node.op, x.rank], x, 1)
