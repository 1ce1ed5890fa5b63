"""Functions of one activation, by their scaling class.

What scale passes is a fact about a function, so the lists below are closed: a function that stands in none of them is
not elementwise to us, and pins.
"""

from __future__ import annotations

from typing import Any

import torch

from canon.graph.rules.registry import Call, rule
from canon.graph.state import State
from canon.graph.values import ChannelAxis, Parts, Value, values_in

IDENTITY = (
    "identity contiguous clone detach alias to float double half bfloat16 type_as lift_fresh_copy detach_".split()
)
"""These return what they got."""

RANDOM = (
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout stochastic_depth "
    "dropout_ feature_dropout_ alpha_dropout_ feature_alpha_dropout_"
).split()
"""In evaluation mode these return what they got."""

ALIASES = frozenset([*IDENTITY, *RANDOM]) - {"clone", "lift_fresh_copy"}
"""Operations whose result may be the very tensor they were given."""

HOMOGENEOUS = "relu relu_ leaky_relu leaky_relu_ rrelu rrelu_ abs abs_ neg neg_".split()
"""`f(s·x) = s·f(x)` for every `s > 0`."""

INHOMOGENEOUS = (
    "celu celu_ elu elu_ selu selu_ gelu gelu_ hardshrink hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh "
    "hardtanh_ logsigmoid log_sigmoid mish mish_ relu6 relu6_ sigmoid sigmoid_ silu silu_ softplus softshrink softsign "
    "tanh tanh_ tanhshrink threshold threshold_ exp log log1p expm1 sqrt rsqrt square pow pow_ sin cos erf reciprocal "
    "clamp clamp_ clip clip_ clamp_min clamp_max sign round floor ceil atan sinh asinh"
).split()
"""Elementwise, and no scale passes."""

_TRAINING_BY_DEFAULT = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "stochastic_depth"})


@rule(*IDENTITY)
def identity(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """The value itself, as long as it stays a number with a fraction."""
    if not call.out.is_floating_point():
        state.pin_value(x, f"{call.name} to {call.out.dtype}")
        return None
    return x.channels


@rule(*RANDOM)
def dropout(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """Nothing in evaluation mode; a forward pass that asks for dropout all the same is not a function."""
    numbers = list(args)
    if call.name == "stochastic_depth" and len(numbers) > 1:
        numbers.pop(1)  # its mode
    chance = kwargs.get("p", numbers[0] if numbers else 0.5)
    default = numbers[1] if len(numbers) > 1 else call.name in _TRAINING_BY_DEFAULT
    if kwargs.get("training", kwargs.get("train", default)) and chance != 0:
        state.pin_value(x, f"{call.name} that is active in evaluation mode")
        return None
    return x.channels


@rule(*HOMOGENEOUS)
def homogeneous(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """An activation that lets positive scale pass."""
    if x.channels is None:
        return None
    active = call.name.startswith("rrelu") and (kwargs.get("training") or (len(args) > 2 and args[2]))
    if active or values_in((args, kwargs)):
        state.pin_value([x, args, kwargs], f"{call.name} with a tensor or random operand")
        return None
    curved = not call.name.startswith("neg")
    return ChannelAxis(x.channels.axis, state.homogeneous(x.channels.parts, call.function, curved=curved))


@rule(*INHOMOGENEOUS)
def inhomogeneous(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """An activation that lets no scale pass."""
    if x.channels is None:
        return None
    if values_in((args, kwargs)):
        state.pin_value([x, args, kwargs], f"{call.name} with a tensor operand")
        return None
    return ChannelAxis(x.channels.axis, state.inhomogeneous(x.channels.parts, call.function))


ZEROS = ("zeros", "new_zeros", "zero_")
"""These make zeros of a given size."""


@rule(*ZEROS[:2])
def made_zeros(state: State, call: Call, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """Zeros have no coordinates until they stand beside channels."""
    return None


@rule("zeros_like", "zero_")
def zeros(state: State, call: Call, x: Value, **kwargs: Any) -> ChannelAxis | None:
    """As many zeros as there are channels, which any scale passes; shortcuts are filled up with them."""
    if x.channels is None or not call.out.is_floating_point():
        state.pin_value(x, f"{call.name} to {call.out.dtype}")
        return None
    return ChannelAxis(x.channels.axis, state.homogeneous(x.channels.parts, torch.zeros_like))


@rule("softmax", "log_softmax", "softmin")
def softmax(state: State, call: Call, x: Value, dim: Any = None, *args: Any, **kw: Any) -> ChannelAxis | None:
    """Over positions it keeps channels apart; over channels it mixes them."""
    if x.channels is None:
        return None
    if dim is None:
        state.pin(x.channels.parts, f"{call.name} over an axis that is not said")
        return None
    if int(dim) % x.data.ndim == x.channels.axis:
        return ChannelAxis(x.channels.axis, state.mixed(x.channels.parts, f"{call.name} over the channels"))
    return ChannelAxis(x.channels.axis, state.inhomogeneous(x.channels.parts, None, keeps_constants=False))


@rule("prelu")
def prelu(state: State, call: Call, x: Value, weight: Value) -> ChannelAxis | None:
    """A slope per channel, or one for all."""
    if x.channels is None:
        return None
    if weight.data.numel() == 1:
        parts = state.homogeneous(x.channels.parts, None, curved=True, keeps_constants=False)
        return ChannelAxis(x.channels.axis, parts)
    if weight.param is None or x.channels.axis != 1:
        state.pin(x.channels.parts, "prelu that cannot be followed")
        return None
    output = state.stage("slope", [x.channels.parts], params={"weight": weight.param})
    state.tie(x.channels.parts, output)
    state.curve(output)
    state.bind(weight.param, 0, "slopes", output)
    return ChannelAxis(x.channels.axis, output)


@rule("glu")
def glu(state: State, call: Call, x: Value, dim: int = -1) -> ChannelAxis | None:
    """`a · sigmoid(b)` of the two halves of an axis: over the channels, the halves become one space."""
    if x.channels is None:
        return None
    axis, parts = x.channels.axis, x.channels.parts
    if int(dim) % x.data.ndim != axis:
        return ChannelAxis(axis, state.inhomogeneous(parts, None, keeps_constants=False))
    halves = state.blocks.cut_parts(parts, x.shape[axis] // 2)
    if halves is None:
        state.pin(parts, "glu through one channel's positions")
        return None
    if not state.unite(*halves, "glu of differently cut halves"):
        return None
    return ChannelAxis(axis, gate(state, halves[0], state.inhomogeneous(halves[1], torch.sigmoid)))


def gate(state: State, a: Parts, b: Parts) -> Parts:
    """A product of two activations: scale and sign of one pass if the other's is fixed.

    Of two that are not, the one that lets more pass is left free.
    """
    a, b = state.blocks.resolve_parts(a), state.blocks.resolve_parts(b)
    output, points = state.stage("mul", [a, b]), state.points
    for x, y, z in zip(a, b, output, strict=True):
        first, second = points.at(x), points.at(y)
        free = points.freedom(first)
        if points.find(first) == points.find(second):
            points.fix(first)
        elif free < 3 and free <= points.freedom(second):
            first, second = second, first
        points.fix(second)
        points.unite(first, points.at(z))
    return output


__all__ = ["ALIASES", "dropout", "gate", "glu", "homogeneous", "identity", "inhomogeneous", "prelu", "softmax"]
