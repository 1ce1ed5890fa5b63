"""Operations on several operands, and the idioms that exporters write with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn import functional

from canon.io.onnx.model import Node
from canon.io.onnx.operators.idioms import gated, gelu, hard_swish
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.values import Activation, Constant, Measured, Product, Value, scaled

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

_COMPARISONS: Final[dict[str, Callable[..., Any]]] = {
    "Equal": torch.eq, "Greater": torch.gt, "GreaterOrEqual": torch.ge, "Less": torch.lt, "LessOrEqual": torch.le,
    "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor, "Max": torch.maximum,
    "Min": torch.minimum, "Pow": torch.pow, "Mod": torch.fmod,
}  # fmt: skip


def number(value: Value, other: Value) -> Any:
    """A constant of one element as a plain number, where that changes neither shape nor type."""
    if not isinstance(value, Constant) or not isinstance(other, Activation):
        return value
    tensor = value.tensor
    if tensor.numel() != 1 or tensor.ndim > other.rank or tensor.dtype != other.dtype or tensor.dtype == torch.bool:
        return value
    return tensor.item()


@operator("Add")
def add(b: Builder, node: Node, x: Value, y: Value) -> Result:
    """A sum; a constant added behind a layer without a bias is its bias."""
    for value, constant in ((x, y), (y, x)):
        if isinstance(value, Activation) and isinstance(constant, Constant) and b.single(value, node):
            return with_bias(b, value, constant)
    return b.call(torch.add, number(x, y), number(y, x))


def with_bias(b: Builder, x: Activation, bias: Value) -> Result:
    """A sum of an activation that nothing else reads and a constant: the layer's bias, if it is one."""
    if isinstance(bias, Constant):
        layer = b.assembly.called(x.node)
        offset = None if layer is None else _bias_for(x, bias, isinstance(layer, nn.Linear))
        if offset is not None and b.assembly.add_bias(x.node, offset):
            return x
    return b.call(torch.add, x, number(bias, x))


def _bias_for(x: Activation, constant: Constant, linear: bool) -> torch.Tensor | None:
    """A constant as the bias of a linear layer (last axis) or of a convolution (second axis)."""
    tensor = constant.tensor
    axis = x.rank - 1 if linear else 1
    own = axis - (x.rank - tensor.ndim)
    if own < 0 or not tensor.numel() == tensor.shape[own] == x.size(axis):
        return None
    return tensor if tensor.ndim == 1 else tensor.reshape(-1)


@operator("Sub")
def sub(b: Builder, node: Node, x: Value, y: Value) -> Result:
    """A difference."""
    return b.call(torch.sub, number(x, y), number(y, x))


@operator("Mul")
def mul(b: Builder, node: Node, x: Value, y: Value) -> Result:
    """A product, or what exporters write as one: SiLU, Hardswish, Mish, GELU, a product of whole numbers."""
    if isinstance(x, (Measured, Product)) or isinstance(y, (Measured, Product)):
        return scaled(x, y)
    for value, gate in ((x, y), (y, x)):
        if isinstance(value, Activation) and isinstance(gate, Activation):
            function = gated(value.node, gate.node)
            if function is not None:
                return b.call(function, value)
    inner = gelu(x, y)
    source = None if inner is None else b.known(inner)
    if source is not None:
        return b.call(functional.gelu, source)
    return b.call(torch.mul, number(x, y), number(y, x))


@operator("Div")
def div(b: Builder, node: Node, x: Value, y: Value) -> Result:
    """A quotient; whole numbers are divided towards zero."""
    first = x.tensor.dtype if isinstance(x, Constant) else b.activation(x).dtype
    if first.is_floating_point:
        inner = hard_swish(x, y)
        source = None if inner is None else b.known(inner)
        if source is not None:
            return b.call(functional.hardswish, source)
        return b.call(torch.div, number(x, y), number(y, x))
    if isinstance(y, Constant) and bool((y.tensor > 0).all()):
        return b.call(torch.div, x, y, rounding_mode="trunc")
    # torch dies of the lowest whole number divided by -1 when it rounds by itself.
    return b.call(torch.floor_divide, b.call(torch.sub, x, b.call(torch.fmod, x, y)), y)


@operator("Sum", "Mean")
def variadic(b: Builder, node: Node, *values: Value) -> Result:
    """A sum or mean of several tensors."""
    total: Any = reduce(lambda a, c: b.call(torch.add, a, c), values)
    return total if node.op == "Sum" else b.call(torch.div, total, float(len(values)))


@operator("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Max", "Min", "Pow", "Mod")
def binary(b: Builder, node: Node, *values: Value) -> Result:
    """A comparison, or a function of two tensors or more."""
    function = _COMPARISONS[node.op]
    if node.op == "Mod" and not node.integer("fmod", 0):
        function = torch.remainder
    if node.op == "Pow" and len(values) == 2:
        return b.call(torch.pow, values[0], _exponent(values[1]))
    if node.op in ("Max", "Min") and len(values) == 2 and any(isinstance(v, Constant) for v in values):
        x, limit = values if isinstance(values[1], Constant) else reversed(values)
        bound = number(limit, x)
        if not isinstance(bound, Constant):
            if bound == 0 and node.op == "Max":
                return b.call(functional.relu, x)
            return b.call(torch.clamp, x, **{"min" if node.op == "Max" else "max": bound})
    return reduce(lambda a, c: b.call(function, a, c), values)


def _exponent(value: Value) -> Any:
    return value.tensor.item() if isinstance(value, Constant) and value.tensor.numel() == 1 else value


@operator("Where")
def where(b: Builder, node: Node, condition: Value, x: Value, y: Value) -> Result:
    """One of two values, element by element."""
    return b.call(torch.where, condition, x, y)


@operator("Einsum")
def einsum(b: Builder, node: Node, *values: Value) -> Result:
    """Einstein's sum."""
    return b.call(torch.einsum, node.text("equation", ""), *values, fold=False)
