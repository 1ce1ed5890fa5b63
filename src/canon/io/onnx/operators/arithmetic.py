"""Operations on several operands, and the idioms that exporters write with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx
from torch.nn import functional

from canon.io.onnx.model import Node
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.values import Activation, Constant, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

_COMPARISONS: Final[dict[str, Callable[..., Any]]] = {
    "Equal": torch.eq, "Greater": torch.gt, "GreaterOrEqual": torch.ge, "Less": torch.lt, "LessOrEqual": torch.le,
    "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor, "Max": torch.maximum,
    "Min": torch.minimum, "Pow": torch.pow, "Mod": torch.fmod,
}  # fmt: skip

_GATES: Final[dict[Any, Callable[..., Any]]] = {
    torch.sigmoid: functional.silu,
    functional.hardsigmoid: functional.hardswish,
}
"""What `x · f(x)` is called."""


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
            bias = _bias_for(value, constant)
            if bias is not None and b.assembly.add_bias(value.node, bias):
                return value
    return b.call(torch.add, number(x, y), number(y, x))


def _bias_for(x: Activation, constant: Constant) -> torch.Tensor | None:
    """A constant as the bias of a linear layer (last axis) or of a convolution (second axis)."""
    if x.node.op != "call_module":
        return None
    tensor = constant.tensor
    for axis in (1, x.rank - 1):
        own = axis - (x.rank - tensor.ndim)
        if own >= 0 and tensor.numel() == tensor.shape[own] == x.size(axis):
            return tensor if tensor.ndim == 1 else tensor.reshape(-1)
    return None


@operator("Sub")
def sub(b: Builder, node: Node, x: Value, y: Value) -> Result:
    """A difference."""
    return b.call(torch.sub, number(x, y), number(y, x))


@operator("Mul")
def mul(b: Builder, node: Node, x: Value, y: Value) -> Result:
    """A product, or what exporters write as one: SiLU, Hardswish, Mish, GELU."""
    for value, gate in ((x, y), (y, x)):
        if isinstance(value, Activation) and isinstance(gate, Activation):
            function = _gated(value.node, gate.node)
            if function is not None:
                return b.call(function, value)
    inner = _gelu(x, y) or _gelu(y, x)
    source = None if inner is None else b.known(inner)
    if source is not None:
        return b.call(functional.gelu, source)
    return b.call(torch.mul, number(x, y), number(y, x))


def _gated(x: fx.Node, gate: fx.Node) -> Callable[..., Any] | None:
    if gate.target in _GATES and gate.args[0] is x:
        return _GATES[gate.target]
    if _is(gate, torch.tanh) and _is(gate.args[0], functional.softplus) and gate.args[0].args[0] is x:  # type: ignore[union-attr]
        return functional.mish
    if _is(gate, torch.div) and _close(gate.args[1], 6) and _shifted(gate.args[0]) is x:
        return functional.hardswish
    return None


def _shifted(node: Any) -> fx.Node | None:
    """The operand of `relu6(x + 3)`."""
    inner = node.args[0] if _is(node, functional.relu6) else None
    if not isinstance(inner, fx.Node) or not _is(inner, torch.add) or not any(_close(a, 3) for a in inner.args):
        return None
    return next((a for a in inner.args if isinstance(a, fx.Node)), None)


def _hard_swish(x: Value, y: Value) -> fx.Node | None:
    """The operand of `x · relu6(x + 3) / 6`."""
    if not isinstance(x, Activation) or not isinstance(y, Constant) or y.tensor.numel() != 1:
        return None
    if not _close(float(y.tensor), 6) or not _is(x.node, torch.mul):
        return None
    first, second = x.node.args[:2]
    for value, gate in ((first, second), (second, first)):
        if isinstance(value, fx.Node) and _shifted(gate) is value:
            return value
    return None


def _gelu(x: Value, y: Value) -> fx.Node | None:
    """The operand of `0.5 · x · (1 + erf(x / √2))`, however its factors are ordered, at its last product."""
    factors: list[Any] = []
    for value in (x, y):
        if isinstance(value, Activation):
            factors += value.node.args if _is(value.node, torch.mul) else [value.node]
        elif isinstance(value, Constant) and value.tensor.numel() == 1:
            factors.append(float(value.tensor))
    halves = [f for f in factors if not isinstance(f, fx.Node)]
    sums = [f for f in factors if isinstance(f, fx.Node) and _error_function(f) is not None]
    if len(factors) != 3 or len(halves) != 1 or not _close(halves[0], 0.5) or len(sums) != 1:
        return None
    inner = _error_function(sums[0])
    return inner if any(f is inner for f in factors) else None


def _error_function(node: fx.Node) -> fx.Node | None:
    """The operand of `1 + erf(x / √2)`."""
    if not _is(node, torch.add):
        return None
    erf = next((a for a in node.args if _is(a, torch.erf)), None)
    if not isinstance(erf, fx.Node) or not any(_close(a, 1) for a in node.args):
        return None
    scaled = erf.args[0]
    if not isinstance(scaled, fx.Node) or len(scaled.args) != 2 or not isinstance(scaled.args[0], fx.Node):
        return None
    factor = {torch.div: math.sqrt(2), torch.mul: math.sqrt(0.5)}.get(scaled.target)  # type: ignore[arg-type]
    return scaled.args[0] if factor is not None and _close(scaled.args[1], factor) else None


def _is(node: Any, function: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is function


def _close(value: Any, number: float) -> bool:
    return isinstance(value, (int, float)) and math.isclose(value, number, rel_tol=1e-4)


@operator("Div")
def div(b: Builder, node: Node, x: Value, y: Value) -> Result:
    """A quotient; whole numbers are divided towards zero."""
    first = x.tensor.dtype if isinstance(x, Constant) else b.activation(x).dtype
    if first.is_floating_point:
        inner = _hard_swish(x, y)
        source = None if inner is None else b.known(inner)
        if source is not None:
            return b.call(functional.hardswish, source)
        return b.call(torch.div, number(x, y), number(y, x))
    return b.call(torch.div, x, y, rounding_mode="trunc")


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
