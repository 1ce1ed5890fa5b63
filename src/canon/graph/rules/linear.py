"""Convolutions and linear layers: rows open a space, columns read one, depthwise kernels ride along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from canon.graph.blocks import Part
from canon.graph.rules.registry import Call, rule
from canon.graph.state import MapRecord, State
from canon.graph.values import ChannelAxis, Parts, Value

PRODUCTS = frozenset({"linear", "addmm", "mm", "matmul", "embedding"})
"""Operations that take a weight the other way around as well."""


def _pair(value: Any, rank: int) -> tuple[int, ...]:
    return tuple(int(v) for v in value) if isinstance(value, Sequence) else (int(value),) * rank


@rule("linear")
def linear(state: State, call: Call, x: Value, weight: Value, bias: Value | None = None) -> ChannelAxis | None:
    """`y = x Wᵀ + b` on the last axis of an input of any rank."""
    axis = x.data.ndim - 1
    return dense(state, call, x, weight, bias, axis, call.rank - 1, (0, 1), 1, False, None)


@rule("addmm")
def addmm(
    state: State, call: Call, bias: Value, x: Value, weight: Value, *, beta: float = 1, alpha: float = 1
) -> ChannelAxis | None:
    """`y = x W + b` of two axes, with the weight stored the other way around."""
    if beta != 1 or alpha != 1 or bias.data.ndim != 1:
        state.pin_value([bias, x, weight], "addmm with factors, or with a matrix to add to")
        return None
    return dense(state, call, x, weight, bias, 1, 1, (1, 0), 1, False, None)


@rule("mm", "matmul")
def matmul(state: State, call: Call, x: Value, weight: Value) -> ChannelAxis | None:
    """`y = x W` where the weight is a parameter; a product of activations mixes channels."""
    if weight.param is None or weight.data.ndim != 2 or x.param is not None or x.data.ndim < 2:
        state.pin_value([x, weight], f"{call.name} of activations")
        return None
    return dense(state, call, x, weight, None, x.data.ndim - 1, call.rank - 1, (1, 0), 1, False, None)


@rule("embedding")
def embedding(
    state: State, call: Call, x: Value, weight: Value, padding_idx: Any = None, max_norm: Any = None, *rest: Any
) -> ChannelAxis | None:
    """Rows looked up by ids, which fix their order; what is in them are the channels that it makes."""
    if x.param is not None and weight.param is None:
        x, weight = weight, x  # the operation underneath takes them the other way around
    elif max_norm is not None:
        state.pin_value([x, weight], "an embedding that is changed when it is read")
        return None
    if x.channels is not None or x.data.is_floating_point():
        state.pin_value([x, weight], "an embedding of something other than ids")
        return None
    return dense(state, call, x, weight, None, x.data.ndim, call.rank - 1, (1, 0), 1, False, None)


@rule("conv1d", "conv2d", "conv3d")
def conv(
    state: State,
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> ChannelAxis | None:
    """Convolution; with as many groups as input channels it is a depthwise stage."""
    spatial = weight.data.ndim - 2
    axis = x.data.ndim - spatial - 1
    if isinstance(padding, str):
        padded = padding == "same" and any(k > 1 for k in weight.shape[2:])
        cropping = None
    else:
        pads = _pair(padding, spatial)
        padded = any(pads)
        square = all(d == 1 for d in _pair(dilation, spatial))
        cropping = pads if square and padding_mode == "zeros" and call.resizable else None
    zero_padding = padded and padding_mode == "zeros"
    if groups > 1 and groups == x.shape[axis]:
        return _depthwise(state, call, x, weight, bias, axis, not padded, cropping)
    return dense(state, call, x, weight, bias, axis, axis, (0, 1), groups, zero_padding, cropping)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(
    state: State,
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> ChannelAxis | None:
    """Transposed convolution: the weight's first axis reads, its second makes. Borders see fewer taps of the
    kernel, so a constant does not stay one."""
    spatial = weight.data.ndim - 2
    axis = x.data.ndim - spatial - 1
    if groups > 1 and groups == x.shape[axis]:
        return _depthwise(state, call, x, weight, bias, axis, False, None)
    if groups > 1:
        state.pin_value(x, "grouped transposed convolution")
        return None
    return dense(state, call, x, weight, bias, axis, axis, (1, 0), 1, True, None)


def dense(
    state: State,
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None,
    in_axis: int,
    out_axis: int,
    weight_axes: tuple[int, int],
    groups: int,
    zero_padding: bool,
    cropping: tuple[int, ...] | None,
) -> ChannelAxis | None:
    """A layer that mixes channels: rows open a space, columns read one."""
    row_axis, column_axis = weight_axes
    if weight.turned:
        weight, weight_axes = replace(weight, data=weight.data.t(), turned=False), (column_axis, row_axis)
        row_axis, column_axis = weight_axes
    if weight.param is None or (bias is not None and bias.param is None):
        state.pin_value([x, weight, bias], "weight computed in the forward pass")
        return None
    roles = {row_axis: "rows", column_axis: "columns"}
    if any(state.bound.get((weight.param, axis), (role, ()))[0] != role for axis, role in roles.items()):
        # A table of embeddings that is the classifier's weight as well: the first use has the channels.
        state.pin_value([x, bias], f"tensor '{weight.param}' is used the other way around")
        return None
    columns = None
    if x.channels is not None:
        if x.channels.axis == in_axis:
            columns = x.channels.parts
        else:
            state.pin(x.channels.parts, "linear map over another axis")
    channels = state.open(weight.shape[row_axis], out_axis)
    if groups > 1:
        # Rows of one group read the columns of that group only, whatever the input is.
        state.grouped.append((channels.parts, groups, state.node))
        if columns is not None and state.blocks.order(columns) is not None:
            state.pin(columns, "groups over shuffled channels")
            columns = None
        if columns is not None:
            state.grouped.append((columns, groups, state.node))
        else:
            state.pin(channels.parts, "groups over an input with fixed coordinates")
    _bind(state, weight, bias, weight_axes, channels.parts, columns)
    state.maps.append(
        MapRecord(
            name=call.layer,
            node=state.node,
            weight=weight.param,
            bias=None if bias is None else bias.param,
            row_axis=row_axis,
            column_axis=column_axis,
            groups=groups,
            rows=channels.parts,
            columns=columns,
            zero_padding=zero_padding,
            cropping=cropping,
        )
    )
    return channels


def _bind(
    state: State, weight: Value, bias: Value | None, axes: tuple[int, int], rows: Parts, columns: Parts | None
) -> None:
    """Tie a layer's tensors to the channels that it makes and reads."""
    assert weight.param is not None, "callers check the name"
    row_axis, column_axis = axes
    state.bind(weight.param, row_axis, "rows", rows)
    if columns is not None:
        state.bind(weight.param, column_axis, "columns", columns)
    elif (weight.param, column_axis) in state.bound:
        state.pin(state.bound[weight.param, column_axis][1], "a shared weight reads a fixed input")
    else:
        state.bound[weight.param, column_axis] = ("columns", ())
    if bias is not None and bias.param is not None:
        state.bind(bias.param, 0, "rows", rows)


def _depthwise(
    state: State,
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None,
    axis: int,
    keeps_constants: bool,
    cropping: tuple[int, ...] | None,
) -> ChannelAxis | None:
    multiplier = weight.shape[0] * weight.shape[1] // x.shape[axis]
    if x.channels is None:
        return None
    if x.channels.axis != axis or weight.param is None or (bias is not None and bias.param is None):
        state.pin_value([x, weight, bias], "depthwise convolution that cannot be followed")
        return None
    if call.name.startswith("conv_transpose") and multiplier > 1:
        state.pin(x.channels.parts, "depthwise transposed convolution with a multiplier")
        return None
    if not call.resizable:
        state.pin(x.channels.parts, "depthwise convolution with a fixed number of groups")
    parts = x.channels.parts
    widened = tuple(part.repeated(multiplier) for part in parts)
    params = {"weight": weight.param}
    if bias is not None and bias.param is not None:
        params["bias"] = bias.param
    output = state.stage("depthwise", [widened], params=params, keeps_constants=keeps_constants, cropping=cropping)
    for role, name in params.items():
        state.bind(name, 0, "bias" if role == "bias" else "kernel", output)
    _bind_input(state, weight.param, parts)
    return ChannelAxis(axis, output)


def _bind_input(state: State, param: str, parts: tuple[Part, ...]) -> None:
    """A stage used twice must undo the same input scale both times: tie the inputs like an extra axis."""
    state.bind(param, -1, "input", parts)


__all__ = ["PRODUCTS", "addmm", "conv", "conv_transpose", "dense", "embedding", "linear", "matmul"]
