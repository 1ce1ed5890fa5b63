"""Functions of one activation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional

from canon.errors import SIZE_HINT, UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.tensors import dtype_of
from canon.io.onnx.values import Constant, Product, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

PLAIN: Final[dict[str, Callable[..., Any]]] = {
    "Relu": functional.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "HardSwish": functional.hardswish,
    "Mish": functional.mish, "Softplus": functional.softplus, "Softsign": functional.softsign, "Abs": torch.abs,
    "Neg": torch.neg, "Exp": torch.exp, "Log": torch.log, "Sqrt": torch.sqrt, "Erf": torch.erf, "Sin": torch.sin,
    "Cos": torch.cos, "Tan": torch.tan, "Asin": torch.asin, "Acos": torch.acos, "Atan": torch.atan, "Sinh": torch.sinh,
    "Cosh": torch.cosh, "Floor": torch.floor, "Ceil": torch.ceil, "Round": torch.round, "Sign": torch.sign,
    "Reciprocal": torch.reciprocal, "Not": torch.logical_not, "IsNaN": torch.isnan, "BitwiseNot": torch.bitwise_not,
}  # fmt: skip
"""Operators without attributes."""


def _plain(function: Callable[..., Any]) -> Callable[..., Result]:
    def apply(b: Builder, node: Node, x: Value) -> Result:
        return b.call(function, x)

    return apply


for _name, _function in PLAIN.items():
    operator(_name)(_plain(_function))


@operator("Identity", "Dropout")
def identity(b: Builder, node: Node, x: Value, ratio: Value | None = None, training: Value | None = None) -> Result:
    """The value itself; dropout does nothing outside of training."""
    if training is not None and not (isinstance(training, Constant) and not training.tensor.any()):
        raise UnsupportedModelError("dropout in training mode")
    return x


@operator("LeakyRelu")
def leaky_relu(b: Builder, node: Node, x: Value) -> Result:
    """`x` where positive, `alpha · x` elsewhere."""
    return b.call(functional.leaky_relu, x, node.real("alpha", 0.01))


@operator("Elu")
def elu(b: Builder, node: Node, x: Value) -> Result:
    """Exponential where negative."""
    return b.call(functional.elu, x, node.real("alpha", 1.0))


@operator("Celu")
def celu(b: Builder, node: Node, x: Value) -> Result:
    """Exponential where negative, smooth for every alpha."""
    return b.call(functional.celu, x, node.real("alpha", 1.0))


@operator("Selu")
def selu(b: Builder, node: Node, x: Value) -> Result:
    """The self-normalising exponential."""
    alpha, gamma = node.real("alpha", 1.67326319), node.real("gamma", 1.05070102)
    if math.isclose(alpha, 1.67326319, rel_tol=1e-6) and math.isclose(gamma, 1.05070102, rel_tol=1e-6):
        return b.call(functional.selu, x)
    return b.call(torch.mul, b.call(functional.elu, x, alpha), gamma)


@operator("ThresholdedRelu")
def thresholded_relu(b: Builder, node: Node, x: Value) -> Result:
    """`x` above alpha, zero elsewhere."""
    return b.call(functional.threshold, x, node.real("alpha", 1.0), 0.0)


@operator("HardSigmoid")
def hard_sigmoid(b: Builder, node: Node, x: Value) -> Result:
    """A line between zero and one."""
    alpha, beta = node.real("alpha", 0.2), node.real("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return b.call(functional.hardsigmoid, x)
    line = b.call(torch.add, b.call(torch.mul, x, alpha), beta)
    return b.call(torch.clamp, line, 0.0, 1.0)


@operator("Gelu")
def gelu(b: Builder, node: Node, x: Value) -> Result:
    """`x · Φ(x)`."""
    kind = node.text("approximate", "none")
    if kind not in ("none", "tanh"):
        raise UnsupportedModelError(f"GELU approximated by {kind[:40]!r}")
    return b.call(functional.gelu, x, approximate=kind)


@operator("Swish")
def swish(b: Builder, node: Node, x: Value) -> Result:
    """`x · sigmoid(alpha · x)`."""
    alpha = node.real("alpha", 1.0)
    if alpha == 1.0:
        return b.call(functional.silu, x)
    return b.call(torch.mul, x, b.call(torch.sigmoid, b.call(torch.mul, x, alpha)))


@operator("Clip")
def clip(b: Builder, node: Node, x: Value, low: Value | None = None, high: Value | None = None) -> Result:
    """Limits on both sides, or one: what is called ReLU or ReLU6 becomes that."""
    least = _number(low) if low is not None else node.attributes.get("min")
    most = _number(high) if high is not None else node.attributes.get("max")
    if least is not None and least < -3e38:
        least = None
    if most is not None and most > 3e38:
        most = None
    if least is None and most is None:
        return x
    if least == 0 and most is None:
        return b.call(functional.relu, x)
    if least == 0 and most == 6:
        return b.call(functional.relu6, x)
    return b.call(torch.clamp, x, least, most)


def _number(value: Value) -> float:
    if not isinstance(value, Constant) or value.tensor.numel() != 1:
        raise UnsupportedModelError("a limit that is computed")
    return float(value.tensor) if value.tensor.is_floating_point() else int(value.tensor)


@operator("Softmax", "LogSoftmax")
def softmax(b: Builder, node: Node, x: Value) -> Result:
    """Over one axis; before version 13 over all axes from one on."""
    function = torch.softmax if node.op == "Softmax" else torch.log_softmax
    x = b.activation(x)
    if b.opset >= 13:
        return b.call(function, x, node.integer("axis", -1))
    axis = node.integer("axis", 1) % x.rank
    if all(x.size(later) == 1 for later in range(axis + 1, x.rank)):
        return b.call(function, x, axis)
    if any(x.size(later) is None for later in range(axis + 1, x.rank)):
        raise UnsupportedModelError("softmax over axes of open size", hint=SIZE_HINT)
    flat = b.call(function, b.call(torch.flatten, x, axis), axis)
    return b.call(torch.unflatten, flat, axis, [int(s) for s in x.hints[0].shape[axis:]])


@operator("Cast", "CastLike")
def cast(b: Builder, node: Node, x: Value, like: Value | None = None) -> Result:
    """Another element type."""
    if isinstance(x, Product):
        return x  # whole numbers that wait for their scale
    if like is not None:
        dtype = b.activation(like).dtype if not isinstance(like, Constant) else like.tensor.dtype
    else:
        dtype = b.wide(dtype_of(node.integer("to", 1), node.where))
    found = x.tensor.dtype if isinstance(x, Constant) else b.activation(x).dtype
    return x if found == dtype else b.call("to", x, dtype)
