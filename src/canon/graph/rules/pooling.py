"""Pooling and reductions over positions: linear or a maximum, so channels stay apart and scale passes."""

from __future__ import annotations

from typing import Any

from canon.graph.rules.choosing import pairwise
from canon.graph.rules.registry import Call, rule
from canon.graph.spec import Reach
from canon.graph.state import State
from canon.graph.values import ChannelAxis, Parts, Value


def _spatial_rank(name: str) -> int:
    return int(name[-2])


def _pool(
    state: State, call: Call, x: Value, *, keeps_constants: bool = True, curved: bool = False
) -> ChannelAxis | None:
    if x.channels is None:
        return None
    axis = x.data.ndim - _spatial_rank(call.name) - 1
    if x.channels.axis > axis:
        state.pin(x.channels.parts, f"{call.name} runs over the channel axis")
        return None
    if isinstance(call.out, (tuple, list)):
        state.pin(x.channels.parts, f"{call.name} also gives indices")
        return None
    function = (lambda v: v) if curved or not keeps_constants else None
    reach: Reach = "extreme" if curved else "mean"
    parts = state.homogeneous(x.channels.parts, function, curved=curved, keeps_constants=keeps_constants, reach=reach)
    return ChannelAxis(x.channels.axis, parts)


@rule("max_pool1d", "max_pool2d", "max_pool3d")
@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def max_pool(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """A maximum over positions; padding never wins it."""
    return _pool(state, call, x, curved=True)


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """A mean over positions."""
    return _pool(state, call, x)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    state: State,
    call: Call,
    x: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> ChannelAxis | None:
    """A mean over positions; counted padding pulls the borders towards zero."""
    padded = any(padding) if isinstance(padding, (tuple, list)) else bool(padding)
    plain = not (padded and count_include_pad) and divisor_override is None
    return _pool(state, call, x, keeps_constants=plain)


@rule("mean", "amax", "amin", "sum")
def reduce(
    state: State,
    call: Call,
    x: Value,
    dim: Any = None,
    keepdim: bool = False,
    *args: Any,
    **kwargs: Any,
) -> ChannelAxis | None:
    """A reduction over positions goes channel by channel; one over the channels does not care for their order."""
    axis = _left(state, call, x, dim, keepdim)
    if x.channels is None or axis is None:
        return None
    identity = (lambda v: v) if call.name != "mean" else None
    parts = state.homogeneous(
        x.channels.parts,
        identity,
        curved=call.name in ("amax", "amin"),
        keeps_constants=call.name != "sum",
        reach="mean" if call.name in ("mean", "sum") else "extreme",
    )
    return ChannelAxis(axis, parts)


@rule("norm", "linalg_vector_norm")
def length(
    state: State, call: Call, x: Value, p: Any = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> ChannelAxis | None:
    """How long a channel's values are as a vector, or those of all channels."""
    axis = _left(state, call, x, dim, keepdim)
    if x.channels is None or axis is None:
        return None
    if p == 0:  # a number of positions
        state.pin(x.channels.parts, f"{call.name} of order 0")
        return None
    parts = state.homogeneous(x.channels.parts, curved=True, keeps_constants=False, reach="other")
    return ChannelAxis(axis, parts)


def _left(state: State, call: Call, x: Value, dim: Any, keepdim: bool) -> int | None:
    """The channels' axis after others are reduced; None where it is one of these."""
    if x.channels is None:
        return None
    rank, axis = x.data.ndim, x.channels.axis
    dims = range(rank) if dim is None or dim in ((), []) else dim if isinstance(dim, (tuple, list)) else (dim,)
    reduced = {int(d) % rank for d in dims}
    if axis in reduced:
        state.mixed(x.channels.parts, f"{call.name} over the channels")
        return None
    return axis if keepdim else axis - sum(d < axis for d in reduced)


@rule("max", "min")
def extreme(
    state: State, call: Call, x: Value, dim: Any = None, keepdim: bool = False
) -> ChannelAxis | list[ChannelAxis | None] | None:
    """The largest or smallest of two values, or along an axis, and where it stands."""
    if isinstance(dim, Value):
        return pairwise(state, call, x, dim)
    values = call.out[0] if isinstance(call.out, (tuple, list)) else call.out
    if x.channels is None or (call.rest_read and values is not call.out):
        state.pin_value(x, f"{call.name} with its place")
        return None
    axis = x.channels.axis
    if dim is None or int(dim) % x.data.ndim == axis:
        state.mixed(x.channels.parts, f"{call.name} over the channels")
        return None
    parts = state.homogeneous(x.channels.parts, lambda v: v, curved=True, reach="extreme")
    gone = values.ndim < x.data.ndim and int(dim) % x.data.ndim < axis
    return [ChannelAxis(axis - gone, parts), None]


@rule("var", "std", "logsumexp")
def spread(state: State, call: Call, x: Value, dim: Any = None, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """Statistics that let no scale pass, over positions or over the channels."""
    if x.channels is None:
        return None
    rank, axis = x.data.ndim, x.channels.axis
    whole = dim is None or isinstance(dim, bool) or dim in ((), [])
    reduced = {int(d) % rank for d in (range(rank) if whole else dim if isinstance(dim, (tuple, list)) else (dim,))}
    if axis in reduced:
        state.mixed(x.channels.parts, f"{call.name} over the channels")
        return None
    parts = state.inhomogeneous(x.channels.parts, None, keeps_constants=False)
    return ChannelAxis(axis if call.rank == rank else axis - sum(d < axis for d in reduced), parts)


@rule("interpolate", "upsample", "upsample_nearest2d", "upsample_bilinear2d")
def interpolate(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """Weighted means of neighbours, channel by channel."""
    if x.channels is not None and x.channels.axis != 1:
        state.pin(x.channels.parts, "interpolation over the channel axis")
        return None
    mode = kwargs.get("mode", args[2] if len(args) > 2 else None)
    if x.channels is None or mode != "bicubic":
        return x.channels
    # Cubic weights are negative in places: what was never negative may become so.
    return ChannelAxis(x.channels.axis, state.homogeneous(x.channels.parts, lambda v: v, reach="other"))


@rule("pad")
def pad(
    state: State, call: Call, x: Value, pad: Any, mode: str = "constant", value: float | None = None
) -> ChannelAxis | None:
    """Padding of positions, with a number other than zero lets no scale pass; or of channels, with zeros."""
    if x.channels is None:
        return None
    from_last = x.data.ndim - 1 - x.channels.axis
    before, after = (*pad[2 * from_last : 2 * from_last + 2], 0, 0)[:2]
    positions = [*pad[: 2 * from_last], *pad[2 * from_last + 2 :]]
    if (before or after) and (mode != "constant" or value or before < 0 or after < 0):
        state.pin(x.channels.parts, "padding of the channel axis")
        return None
    parts = x.channels.parts
    if mode == "constant" and any(positions):
        if value:
            parts = state.inhomogeneous(parts, None, keeps_constants=False)
        else:
            parts = state.homogeneous(parts, lambda v: v, keeps_constants=False, reach="mean")
    axis = x.channels.axis
    return ChannelAxis(axis, state.blocks.join([_zeros(state, before, axis), parts, _zeros(state, after, axis)]))


def _zeros(state: State, count: int, axis: int) -> Parts:
    """Channels that are zeros. Their number is written into the forward pass, so it must stay."""
    if not count:
        return ()
    channels = state.open(int(count), axis)
    state.keep_width(channels.parts, "zeros are padded in by number")
    return channels.parts


__all__ = ["adaptive_avg_pool", "avg_pool", "extreme", "interpolate", "max_pool", "pad", "reduce", "spread"]
