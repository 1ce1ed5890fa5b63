"""Activations that exporters write out in several nodes, known again by the last of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx
from torch.nn import functional

from canon.io.onnx.values import Activation, Constant, Value

_GATES: Final[dict[Any, Callable[..., Any]]] = {
    torch.sigmoid: functional.silu,
    functional.hardsigmoid: functional.hardswish,
}
"""What `x · f(x)` is called."""


def gated(x: fx.Node, gate: fx.Node) -> Callable[..., Any] | None:
    """What `x · gate` is called, where the gate is a function of `x`."""
    inner: Any = gate.args[0] if gate.args else None
    if gate.target in _GATES and inner is x:
        return _GATES[gate.target]
    if _is(gate, torch.tanh) and _is(inner, functional.softplus) and inner.args[0] is x:
        return functional.mish
    if _is(gate, torch.div) and _close(gate.args[1], 6) and _shifted(inner) is x:
        return functional.hardswish
    return None


def _shifted(node: Any) -> fx.Node | None:
    """The operand of `relu6(x + 3)`."""
    inner = node.args[0] if _is(node, functional.relu6) else None
    if not isinstance(inner, fx.Node) or not _is(inner, torch.add) or not any(_close(a, 3) for a in inner.args):
        return None
    return next((a for a in inner.args if isinstance(a, fx.Node)), None)


def hard_swish(x: Value, y: Value) -> fx.Node | None:
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


def gelu(x: Value, y: Value) -> fx.Node | None:
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
    divided = _is(scaled, torch.div) and _close(scaled.args[1], math.sqrt(2))
    multiplied = _is(scaled, torch.mul) and _close(scaled.args[1], math.sqrt(0.5))
    return scaled.args[0] if divided or multiplied else None


def _is(node: Any, function: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is function


def _close(value: Any, number: float) -> bool:
    return isinstance(value, (int, float)) and math.isclose(value, number, rel_tol=1e-6)
