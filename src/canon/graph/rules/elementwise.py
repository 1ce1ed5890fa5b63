"""Operations on two operands: sums that unite spaces, gates, layer scale, numbers."""

from __future__ import annotations

from typing import Any

import torch

from canon.graph.rules.activations import gate
from canon.graph.rules.registry import Call, rule
from canon.graph.state import State
from canon.graph.values import ChannelAxis, Parts, Value

_DIVISIONS = ("div", "truediv", "true_divide")


@rule("add", "add_", "iadd", "sub", "sub_", "isub", "rsub", "subtract", "subtract_")
def add(state: State, call: Call, x: Any, y: Any, alpha: Any = 1) -> ChannelAxis | None:
    """A sum unites the spaces of its operands; a difference is the sum with a negated operand."""
    if alpha != 1 and isinstance(y, Value):
        state.pin_value([x, y], f"{call.name} with alpha")
        return None
    if _kind(call) == "sub":
        x, y = (y, x) if call.name == "rsub" else (x, y)
    return combine(state, call, x, y)


@rule("mul", "mul_", "imul", "multiply", "multiply_", "div", "div_", "truediv", "itruediv", "true_divide")
def mul(state: State, call: Call, x: Any, y: Any, rounding_mode: str | None = None) -> ChannelAxis | None:
    """A product: a gate, a layer scale, or a number."""
    if rounding_mode is not None:
        state.pin_value([x, y], "division with rounding")
        return None
    tensors = isinstance(x, Value) and isinstance(y, Value)
    if _kind(call) == "div" and tensors and (y.channels is not None or y.param is not None):
        state.pin_value([x, y], "division by a tensor")
        return None
    return combine(state, call, x, y)


def _kind(call: Call) -> str:
    """What an operation does: add, sub, mul or div."""
    name = call.name.rstrip("_").removeprefix("i")
    if name in _DIVISIONS:
        return "div"
    return {"multiply": "mul", "subtract": "sub", "rsub": "sub"}.get(name, name)


def combine(state: State, call: Call, x: Any, y: Any) -> ChannelAxis | None:
    """`x` and `y` in the order of the formula; at least one of them has channels."""
    swapped = not isinstance(x, Value) or x.channels is None
    main, other = (y, x) if swapped else (x, y)
    if not isinstance(main, Value) or main.channels is None:
        return None
    channels = _broadcast(main, call.rank)
    if not isinstance(other, Value):
        return ChannelAxis(channels.axis, _with_number(state, call, channels.parts, swapped))
    if call.out.shape[channels.axis] != main.shape[main.channels.axis]:
        # One channel broadcast over many: it must stay one channel, and the other operand decides.
        state.pin(channels.parts, "one channel broadcast over many")
        if other.channels is None:
            return None
        kept = _broadcast(other, call.rank)
        return ChannelAxis(kept.axis, _with_shared(state, call, kept.parts))
    if other.channels is not None:
        return _with_activation(state, call, channels, other)
    own = channels.axis - (call.rank - other.data.ndim)
    if own < 0 or other.shape[own] == 1:
        return ChannelAxis(channels.axis, _with_shared(state, call, channels.parts))
    if other.param is None:
        state.pin(channels.parts, f"{call.name} with a value that has fixed coordinates")
        return None
    flat = other.data.numel() == other.shape[own]
    if _kind(call) == "mul":
        return ChannelAxis(channels.axis, _layer_scale(state, channels.parts, other.param, own, flat))
    negate = (swapped, not swapped) if _kind(call) == "sub" else (False, False)
    return ChannelAxis(channels.axis, _shift(state, channels.parts, other.param, own, flat, negate))


def _with_activation(state: State, call: Call, channels: ChannelAxis, y: Value) -> ChannelAxis | None:
    assert y.channels is not None, "callers check the channels"
    other = _broadcast(y, call.rank)
    if other.axis != channels.axis:
        state.pin(channels.parts, f"{call.name} of values whose channels lie on different axes")
        state.pin(other.parts, f"{call.name} of values whose channels lie on different axes")
        return None
    if call.out.shape[other.axis] != y.shape[y.channels.axis]:
        state.pin(other.parts, "one channel broadcast over many")
        return ChannelAxis(channels.axis, _with_shared(state, call, channels.parts))
    if not state.unite(channels.parts, other.parts, f"{call.name} of differently cut axes"):
        return None
    if _kind(call) == "mul":
        return ChannelAxis(channels.axis, gate(state, channels.parts, other.parts))
    return ChannelAxis(channels.axis, _join(state, call, channels.parts, other.parts))


def _broadcast(x: Value, rank: int) -> ChannelAxis:
    assert x.channels is not None, "callers check the channels"
    return ChannelAxis(x.channels.axis + rank - x.data.ndim, x.channels.parts)


def _with_number(state: State, call: Call, parts: Parts, swapped: bool) -> Parts:
    if _kind(call) == "mul" or (_kind(call) == "div" and not swapped):
        return state.homogeneous(parts, call.function)
    return state.inhomogeneous(parts, call.function)


def _with_shared(state: State, call: Call, parts: Parts) -> Parts:
    """The same unknown operand for every channel, different at every position."""
    if _kind(call) in ("mul", "div"):
        return state.homogeneous(parts, lambda v: v, curved=True, keeps_constants=False, reach="other")
    return state.inhomogeneous(parts, None, keeps_constants=False)


def _join(state: State, call: Call, a: Parts, b: Parts) -> Parts:
    state.tie(a, b)
    if _kind(call) == "sub":
        b = state.homogeneous(b, torch.neg)
    output = state.stage("add", [a, b])
    state.tie(a, output)
    return output


def _shift(state: State, parts: Parts, param: str, axis: int, flat: bool, negate: tuple[bool, bool]) -> Parts:
    """`x + b`; `b - x` is `-x + b`, and `x - b` is `-(-x + b)`."""
    before, around = negate
    if before or around:
        parts = state.homogeneous(parts, torch.neg)
    output = state.stage("shift", [parts], params={"bias": param}, axis=axis, keeps_constants=flat)
    state.tie(parts, output)
    state.bind(param, axis, "bias", output)
    return state.homogeneous(output, torch.neg) if around else output


def _layer_scale(state: State, parts: Parts, param: str, axis: int, flat: bool) -> Parts:
    output = state.stage("scale", [parts], params={"weight": param}, axis=axis, keeps_constants=flat)
    state.bind(param, axis, "scale", output)
    state.bind(param, -1, "input", parts)
    return output


__all__ = ["add", "combine", "mul"]
