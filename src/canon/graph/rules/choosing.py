"""Choices between values, as sums and products that make the same choice: `where(c, x, y) = c·x + (1 - c)·y`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from canon.graph.rules.elementwise import combine
from canon.graph.rules.registry import Call, rule
from canon.graph.state import State
from canon.graph.values import ChannelAxis, Value


@rule("gt", "lt", "ge", "le", "eq", "ne", "greater", "less", "greater_equal", "less_equal", "not_equal")
def compare(state: State, call: Call, x: Value, y: Any) -> ChannelAxis | None:
    """Whether something holds of a channel's value: 1 or 0."""
    if not isinstance(x, Value) or isinstance(y, Value):
        state.pin_value([x, y], f"{call.name} of two values")
        return None
    return _curve(state, x, lambda v: call.function(v).to(v.dtype))


@rule("where")
def where(state: State, call: Call, condition: Value, x: Any, y: Any) -> ChannelAxis | None:
    """One of two values at every place."""
    return _choose(state, call, condition, x, y)


@rule("masked_fill", "masked_fill_")
def masked_fill(state: State, call: Call, x: Value, mask: Value, value: Any) -> ChannelAxis | None:
    """The value itself, but for places at which something else stands."""
    return _choose(state, call, mask, value, x)


def _choose(state: State, call: Call, condition: Value, x: Any, y: Any) -> ChannelAxis | None:
    other = replace(condition, channels=_curve(state, condition, lambda v: 1 - v))
    return combine(state, replace(call, name="add"), _times(state, call, condition, x), _times(state, call, other, y))


def _times(state: State, call: Call, condition: Value, x: Any) -> Value:
    """A value where a condition holds, and zero elsewhere."""
    shape = torch.broadcast_shapes(condition.shape, x.shape) if isinstance(x, Value) else condition.shape
    out = call.out.new_empty(shape)
    product = replace(call, name="mul", out=out, function=lambda v: v * x)
    return Value(out, combine(state, product, condition, x))


def _curve(state: State, x: Value, function: Callable[[Tensor], Tensor]) -> ChannelAxis | None:
    return x.channels and ChannelAxis(x.channels.axis, state.inhomogeneous(x.channels.parts, function))


def pairwise(state: State, call: Call, x: Value, y: Value) -> ChannelAxis | None:
    """`max(x, y) = x + relu(y - x)`, and `min(x, y) = x - relu(x - y)`."""
    smaller = call.name.startswith("min")
    first, second = (x, y) if smaller else (y, x)
    gap = combine(state, replace(call, name="sub"), first, second)
    if gap is None:
        state.pin_value([x, y], f"{call.name} with fixed coordinates")
        return None
    above = Value(call.out, ChannelAxis(gap.axis, state.homogeneous(gap.parts, torch.relu, curved=True)))
    return combine(state, replace(call, name="sub" if smaller else "add"), x, above)


rule("maximum", "minimum")(pairwise)

__all__ = ["pairwise"]
