"""Pooling and reductions over positions: linear or a maximum, so channels stay apart and scale passes."""

from __future__ import annotations

from typing import Any

from canon.graph.rules.registry import Call, rule
from canon.graph.spec import Reach
from canon.graph.state import State
from canon.graph.values import Layout, Parts, Value


def _spatial_rank(name: str) -> int:
    return int(name[-2])


def _pool(state: State, call: Call, x: Value, *, keeps_constants: bool = True, curved: bool = False) -> Layout | None:
    if x.layout is None:
        return None
    axis = x.data.ndim - _spatial_rank(call.name) - 1
    if x.layout.axis > axis:
        state.pin(x.layout.parts, f"{call.name} runs over the channel axis")
        return None
    if isinstance(call.out, (tuple, list)):
        state.pin(x.layout.parts, f"{call.name} also gives indices")
        return None
    function = (lambda v: v) if curved or not keeps_constants else None
    reach: Reach = "extreme" if curved else "mean"
    parts = state.homogeneous(x.layout.parts, function, curved=curved, keeps_constants=keeps_constants, reach=reach)
    return Layout(x.layout.axis, parts)


@rule("max_pool1d", "max_pool2d", "max_pool3d")
@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def max_pool(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> Layout | None:
    """A maximum over positions; padding never wins it."""
    return _pool(state, call, x, curved=True)


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> Layout | None:
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
) -> Layout | None:
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
) -> Layout | None:
    """A reduction over axes other than the channels'."""
    if x.layout is None:
        return None
    rank, axis = x.data.ndim, x.layout.axis
    dims = range(rank) if dim is None or dim in ((), []) else dim if isinstance(dim, (tuple, list)) else (dim,)
    reduced = {int(d) % rank for d in dims}
    if axis in reduced or isinstance(call.out, (tuple, list)):
        state.pin(x.layout.parts, f"{call.name} over the channels")
        return None
    if not keepdim:
        axis -= sum(d < axis for d in reduced)
    identity = (lambda v: v) if call.name != "mean" else None
    parts = state.homogeneous(
        x.layout.parts,
        identity,
        curved=call.name in ("amax", "amin"),
        keeps_constants=call.name != "sum",
        reach="mean" if call.name in ("mean", "sum") else "extreme",
    )
    return Layout(axis, parts)


@rule("interpolate", "upsample", "upsample_nearest2d", "upsample_bilinear2d")
def interpolate(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> Layout | None:
    """Weighted means of neighbours, channel by channel."""
    if x.layout is not None and x.layout.axis != 1:
        state.pin(x.layout.parts, "interpolation over the channel axis")
        return None
    mode = kwargs.get("mode", args[2] if len(args) > 2 else None)
    if x.layout is None or mode != "bicubic":
        return x.layout
    # Cubic weights are negative in places: what was never negative may become so.
    return Layout(x.layout.axis, state.homogeneous(x.layout.parts, lambda v: v, reach="other"))


@rule("pad")
def pad(
    state: State, call: Call, x: Value, pad: Any, mode: str = "constant", value: float | None = None
) -> Layout | None:
    """Padding of positions, with a number other than zero lets no scale pass; or of channels, with zeros."""
    if x.layout is None:
        return None
    from_last = x.data.ndim - 1 - x.layout.axis
    before, after = (*pad[2 * from_last : 2 * from_last + 2], 0, 0)[:2]
    positions = [*pad[: 2 * from_last], *pad[2 * from_last + 2 :]]
    if (before or after) and (mode != "constant" or value or before < 0 or after < 0):
        state.pin(x.layout.parts, "padding of the channel axis")
        return None
    parts = x.layout.parts
    if mode == "constant" and any(positions):
        if value:
            parts = state.inhomogeneous(parts, None, keeps_constants=False)
        else:
            parts = state.homogeneous(parts, lambda v: v, keeps_constants=False, reach="mean")
    axis = x.layout.axis
    return Layout(axis, (*_zeros(state, before, axis), *parts, *_zeros(state, after, axis)))


def _zeros(state: State, count: int, axis: int) -> Parts:
    """Channels that are zeros. Their number is written into the forward pass, so it must stay."""
    if not count:
        return ()
    layout = state.open(int(count), axis)
    state.keep_width(layout.parts, "zeros are padded in by number")
    return layout.parts


__all__ = ["adaptive_avg_pool", "avg_pool", "interpolate", "max_pool", "pad", "reduce"]
