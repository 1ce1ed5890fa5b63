"""Norms: statistics per channel ride along with the space; over all channels, they do not care for their order."""

from __future__ import annotations

from typing import Any

from canon.graph.rules.registry import Call, rule
from canon.graph.state import State
from canon.graph.values import ChannelAxis, Parts, Value


@rule("batch_norm")
def batch_norm(
    state: State,
    call: Call,
    x: Value,
    running_mean: Value | None,
    running_var: Value | None,
    weight: Value | None = None,
    bias: Value | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ChannelAxis | None:
    """`γ (x - mean) / √(var + ε) + β`, with running statistics."""
    if x.channels is None:
        return None
    if training:
        state.pin(x.channels.parts, "norm over batch statistics")
        return None
    return _running_norm(state, x, running_mean, running_var, weight, bias, eps)


def _running_norm(
    state: State,
    x: Value,
    running_mean: Value | None,
    running_var: Value | None,
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> ChannelAxis | None:
    assert x.channels is not None, "callers check the channels"
    if running_mean is None or running_var is None:
        state.pin(x.channels.parts, "norm over batch statistics")
        return None
    operands = {"mean": running_mean, "var": running_var, "weight": weight, "bias": bias}
    params = {role: v.param for role, v in operands.items() if v is not None and v.param}
    if x.channels.axis != 1 or len(params) != sum(v is not None for v in operands.values()):
        state.pin(x.channels.parts, "norm that cannot be followed")
        return None
    parts = x.channels.parts
    output = state.stage("norm", [parts], params=params, eps=float(eps))
    for role, name in params.items():
        state.bind(name, 0, f"norm {role}", parts if role in ("mean", "var") else output)
    if "weight" in params:
        # An input scale changes the weight by way of the variance, so norms that share a weight must share both.
        state.bind(params["weight"], -1, f"input of a norm with {params['var']} and {float(eps)}", parts)
    if "weight" not in params or "bias" not in params:
        # Without an affine part nothing can take up a scale.
        state.fix(parts)
        state.fix(output)
    return ChannelAxis(x.channels.axis, output)


@rule("instance_norm")
def instance_norm(
    state: State,
    call: Call,
    x: Value,
    running_mean: Value | None = None,
    running_var: Value | None = None,
    weight: Value | None = None,
    bias: Value | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ChannelAxis | None:
    """Each channel normalised by its own statistics; ε lets no scale pass exactly."""
    if x.channels is None:
        return None
    if call.layer and weight is None and running_mean is None:
        # The layer keeps its width in an attribute, and no tensor would bring that up to date.
        state.pin(x.channels.parts, "instance norm without tensors")
        return None
    if not use_input_stats:
        return _running_norm(state, x, running_mean, running_var, weight, bias, eps)
    return _per_channel(state, x, weight, bias, float(eps))


@rule("group_norm")
def group_norm(
    state: State,
    call: Call,
    x: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> ChannelAxis | None:
    """One channel per group is instance norm; otherwise channels move inside their groups, and their number stays."""
    if x.channels is None:
        return None
    if num_groups == x.shape[1] and weight is not None and call.resizable:
        return _per_channel(state, x, weight, bias, float(eps))
    params = [v.param for v in (weight, bias) if v is not None]
    if x.channels.axis != 1 or any(name is None for name in params):
        state.pin(x.channels.parts, "group norm mixes channels")
        return None
    parts = x.channels.parts
    state.grouped.append((parts, int(num_groups), state.node))
    state.trading.append((parts, int(num_groups)))
    return ChannelAxis(1, _with_affine(state, call, state.mixed(parts, "group norm mixes channels"), weight, bias))


def _with_affine(state: State, call: Call, parts: Parts, weight: Value | None, bias: Value | None) -> Parts:
    """Gain and offset: a scale behind the norm goes into the gain, and what reads it takes it back."""
    if weight is not None and weight.param is not None:
        parts = state.stage("scale", [parts], params={"weight": weight.param})
        state.bind(weight.param, 0, f"{call.name} weight", parts)
    if bias is not None and bias.param is not None:
        given, parts = parts, state.stage("shift", [parts], params={"bias": bias.param})
        state.tie(given, parts)
        state.bind(bias.param, 0, f"{call.name} bias", parts)
    return parts


def _per_channel(state: State, x: Value, weight: Value | None, bias: Value | None, eps: float) -> ChannelAxis | None:
    assert x.channels is not None, "callers check the channels"
    operands = {"weight": weight, "bias": bias}
    params = {role: v.param for role, v in operands.items() if v is not None and v.param}
    if x.channels.axis != 1 or len(params) != sum(v is not None for v in operands.values()):
        state.pin(x.channels.parts, "norm that cannot be followed")
        return None
    parts = x.channels.parts
    output = state.stage("instance_norm", [parts], params=params, eps=eps)
    for role, name in params.items():
        state.bind(name, 0, f"instance norm {role}", output)
    state.fix(parts)
    state.fix(output)
    return ChannelAxis(x.channels.axis, output)


@rule("attention", "scaled_dot_product_attention")
def attention(state: State, call: Call, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """Products over the channels of a head: they must stay as they are."""
    state.pin_value([args, kwargs], "attention mixes the channels of a head")
    return None


@rule("attention_width")
def attention_width(state: State, call: Call, x: Value) -> ChannelAxis | None:
    """What an attention layer of torch.nn takes and gives has the width that is written into it."""
    if x.channels is not None:
        state.keep_width(x.channels.parts, "the width is written into the attention layer")
    return x.channels


@rule("layer_norm", "rms_norm")
def layer_norm(
    state: State,
    call: Call,
    x: Value,
    normalized_shape: Any,
    weight: Value | None = None,
    bias: Value | float | None = None,
    eps: float | None = None,
    *rest: Any,
) -> ChannelAxis | None:
    """Statistics over all channels at one position; over positions too, a weight for each would pin."""
    shift = bias if isinstance(bias, Value) else None
    if x.channels is None:
        return None
    several = isinstance(normalized_shape, (tuple, list)) and len(normalized_shape) > 1
    named = all(value is None or value.param is not None for value in (weight, shift))
    if several or not named or x.channels.axis != x.data.ndim - 1:
        state.pin(x.channels.parts, f"{call.name} mixes channels and positions")
        return None
    parts = state.mixed(x.channels.parts, f"{call.name} mixes channels", ball=x.data.shape[-1] ** 0.5)
    return ChannelAxis(x.channels.axis, _with_affine(state, call, parts, weight, shift))


@rule("normalize")
def normalize(
    state: State, call: Call, x: Value, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None
) -> ChannelAxis | None:
    """Divided by a length, over the channels or over positions."""
    if x.channels is None:
        return None
    if isinstance(dim, int) and dim % x.data.ndim == x.channels.axis:
        return ChannelAxis(x.channels.axis, state.mixed(x.channels.parts, "normalize mixes channels"))
    return ChannelAxis(x.channels.axis, state.inhomogeneous(x.channels.parts, None, keeps_constants=False))


@rule("local_response_norm")
def neighbours(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """Statistics over neighbouring channels: the space must stay as it is."""
    state.pin_value(x, f"{call.name} mixes neighbouring channels")
    return None


__all__ = [
    "attention", "attention_width", "batch_norm", "group_norm", "instance_norm", "layer_norm", "neighbours",
    "normalize",
]  # fmt: skip
