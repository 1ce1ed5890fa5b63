"""Elementwise operations: activations by their scaling class, sums that unite spaces, gates, layer scale.

The scaling class (what scale passes) is a fact about a function, so the three lists below are closed: a function that
stands in none of them is not elementwise to us, and pins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from canon.graph.rules.registry import Call, rule
from canon.graph.state import Layout, Parts, State, Value

IDENTITY = (
    "identity dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout_ "
    "stochastic_depth contiguous clone detach alias to float double half bfloat16 type_as lift_fresh_copy "
    "detach_ checkpoint_name _assert_tensor_metadata"
).split()
"""In evaluation mode these return what they got."""

HOMOGENEOUS = "relu relu_ leaky_relu leaky_relu_ rrelu rrelu_ abs neg".split()
"""`f(s·x) = s·f(x)` for every `s > 0`."""

INHOMOGENEOUS = (
    "celu celu_ elu elu_ selu selu_ gelu gelu_ hardshrink hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh "
    "hardtanh_ logsigmoid log_sigmoid mish mish_ relu6 relu6_ sigmoid sigmoid_ silu silu_ softplus softshrink softsign "
    "tanh tanh_ tanhshrink threshold threshold_ exp log log1p expm1 sqrt rsqrt square pow sin cos erf reciprocal "
    "clamp clamp_ clip clamp_min clamp_max sign round floor ceil"
).split()
"""Elementwise, and no scale passes."""


@rule(*IDENTITY)
def identity(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> Layout | None:
    """The value itself."""
    return x.layout


@rule(*HOMOGENEOUS)
def homogeneous(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> Layout | None:
    """An activation that lets positive scale pass."""
    if x.layout is None:
        return None
    curved = call.name != "neg"
    return Layout(x.layout.axis, state.homogeneous(x.layout.parts, call.function, curved=curved))


@rule(*INHOMOGENEOUS)
def inhomogeneous(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> Layout | None:
    """An activation that lets no scale pass."""
    if x.layout is None:
        return None
    if any(isinstance(a, Value) for a in (*args, *kwargs.values())):
        state.pin_value([x, args, kwargs], f"{call.name} with a tensor operand")
        return None
    return Layout(x.layout.axis, state.inhomogeneous(x.layout.parts, call.function))


@rule("softmax", "log_softmax", "softmin")
def softmax(state: State, call: Call, x: Value, dim: Any = None, *args: Any, **kw: Any) -> Any:
    """Over positions it keeps channels apart; over channels it mixes them."""
    if x.layout is None:
        return None
    if dim is None or int(dim) % x.data.ndim == x.layout.axis:
        state.pin(x.layout.parts, f"{call.name} over the channels")
        return None
    return Layout(
        x.layout.axis, state.inhomogeneous(x.layout.parts, None, keeps_constants=False)
    )


@rule("prelu")
def prelu(state: State, call: Call, x: Value, weight: Value) -> Layout | None:
    """A slope per channel, or one for all."""
    if x.layout is None:
        return None
    if weight.data.numel() == 1:
        return Layout(
            x.layout.axis, state.homogeneous(x.layout.parts, None, keeps_constants=False)
        )
    if weight.param is None or x.layout.axis != 1:
        state.pin(x.layout.parts, "prelu that cannot be followed")
        return None
    output = state.stage("slope", [x.layout.parts], params={"weight": weight.param})
    state.tie(x.layout.parts, output)
    for part in output:
        state.points.curve(part.point)
    state.bind(weight.param, 0, "slopes", output)
    return Layout(x.layout.axis, output)


@rule("add", "add_", "iadd", "sub", "sub_", "isub", "rsub")
def add(state: State, call: Call, x: Any, y: Any, alpha: float = 1, **kwargs: Any) -> Any:
    """A sum unites the spaces of its operands."""
    return _binary(state, call, x, y, _join, _shift)


@rule("mul", "mul_", "imul", "div", "div_", "truediv", "itruediv", "true_divide")
def mul(state: State, call: Call, x: Any, y: Any, **kwargs: Any) -> Any:
    """A product: a gate, a layer scale, or a number."""
    if call.name.lstrip("i") in ("div", "div_", "truediv", "true_divide") and (
        isinstance(y, Value) and (y.layout is not None or y.param is not None)
    ):
        state.pin_value([x, y], "division by an activation")
        return None
    return _binary(state, call, x, y, _gate, _layer_scale)


def _binary(
    state: State,
    call: Call,
    x: Any,
    y: Any,
    both: Callable[[State, Call, Parts, Parts], Parts],
    per_channel: Callable[[State, Parts, str, int, bool], Parts],
) -> Layout | None:
    if not isinstance(x, Value) or x.layout is None:
        x, y = y, x
    if not isinstance(x, Value) or x.layout is None:
        return None
    layout = _broadcast(x, call.rank)
    if not isinstance(y, Value):
        return Layout(layout.axis, _with_number(state, call, layout.parts))
    if call.out.shape[layout.axis] != x.shape[x.layout.axis]:
        # One channel broadcast over many: it must stay one channel, and the other operand decides.
        state.pin(layout.parts, "one channel broadcast over many")
        if y.layout is None:
            return None
        kept = _broadcast(y, call.rank)
        return Layout(kept.axis, _with_shared(state, call, kept.parts))
    if y.layout is not None:
        other = _broadcast(y, call.rank)
        if other.axis != layout.axis:
            state.pin_value([x, y], f"{call.name} of values whose channels lie on different axes")
            return None
        if y.shape[y.layout.axis] != x.shape[x.layout.axis]:
            state.pin(other.parts, "one channel broadcast over many")
            return Layout(layout.axis, _with_shared(state, call, layout.parts))
        if not state.unite(layout.parts, other.parts, f"{call.name} of differently cut axes"):
            return None
        return Layout(layout.axis, both(state, call, layout.parts, other.parts))
    own = layout.axis - (call.rank - y.data.ndim)
    if own < 0 or y.shape[own] == 1:
        return Layout(layout.axis, _with_shared(state, call, layout.parts))
    if y.param is None:
        state.pin(layout.parts, f"{call.name} with a value that has fixed coordinates")
        return None
    flat = y.data.numel() == y.shape[own]
    return Layout(layout.axis, per_channel(state, layout.parts, y.param, own, flat))


def _broadcast(x: Value, rank: int) -> Layout:
    assert x.layout is not None, "callers check the layout"
    return Layout(x.layout.axis + rank - x.data.ndim, x.layout.parts)


def _with_number(state: State, call: Call, parts: Parts) -> Parts:
    if call.name.startswith(("mul", "imul", "div", "truediv", "itruediv", "true_divide")):
        if isinstance(call.literals[0], (int, float)) and "div" in call.name:
            return state.inhomogeneous(parts, call.function)
        return state.homogeneous(parts, call.function)
    return state.inhomogeneous(parts, call.function)


def _with_shared(state: State, call: Call, parts: Parts) -> Parts:
    """The same unknown operand for every channel, different at every position."""
    if call.name.startswith(("mul", "imul", "div", "truediv", "itruediv", "true_divide")):
        return state.homogeneous(parts, lambda v: v, curved=True, keeps_constants=False)
    return state.inhomogeneous(parts, None, keeps_constants=False)


def _join(state: State, call: Call, a: Parts, b: Parts) -> Parts:
    state.tie(a, b)
    if "sub" in call.name:
        negated = state.homogeneous(b, torch.neg)
        state.tie(b, negated)
        b = negated
    output = state.stage("add", [a, b])
    state.tie(a, output)
    return output


def _gate(state: State, call: Call, a: Parts, b: Parts) -> Parts:
    """A product of two activations: the scale of one passes if the other's is fixed."""
    a, b = state.blocks.resolve_parts(a), state.blocks.resolve_parts(b)
    output = state.stage("mul", [a, b])
    for x, y, z in zip(a, b, output, strict=True):
        if state.points.find(x.point) == state.points.find(y.point):
            state.points.fix(x.point)
        elif state.points.is_fixed(x.point):
            x, y = y, x
        state.points.fix(y.point)
        state.points.unite(x.point, z.point)
        state.points.curve(z.point)
    return output


def _shift(state: State, parts: Parts, param: str, axis: int, flat: bool) -> Parts:
    output = state.stage(
        "shift", [parts], params={"bias": param}, axis=axis, keeps_constants=flat
    )
    state.tie(parts, output)
    state.bind(param, axis, "channels", output)
    return output


def _layer_scale(state: State, parts: Parts, param: str, axis: int, flat: bool) -> Parts:
    output = state.stage(
        "scale", [parts], params={"weight": param}, axis=axis, keeps_constants=flat
    )
    state.bind(param, axis, "channels", output)
    state.bind(param, -1, "input", parts)
    return output


__all__ = ["add", "homogeneous", "identity", "inhomogeneous", "mul", "prelu", "softmax"]
