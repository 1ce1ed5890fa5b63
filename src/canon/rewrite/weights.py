"""What a rewrite does to tensors: pure arithmetic, no modules.

`write_weight` is the one place where a weight becomes `L·W·M`, for attack, recovery, alignment and extraction alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from canon._memory import Empty, scratch, separate
from canon.graph import LinearMap
from canon.rewrite.axes import apart, by_row, kernel_of, side_by_side
from canon.rewrite.kernels import Ends, inner_places
from canon.transforms import ChannelTransform

PIECE: Final = 1 << 19
"""Weights worked on at a time on the host: what a core's cache holds."""

PIECE_ON_DEVICE: Final = 1 << 26
"""The same on a device, where every step costs a launch."""

Totals = Callable[[Tensor], Tensor]
"""From numbers of rows to the sums in them, `rows x targets x kernel`, in the order of `ChannelTransform.sums`."""


def write_weight(
    weight: Tensor,
    linear: LinearMap,
    rows: ChannelTransform | None,
    columns: ChannelTransform | None,
    *,
    ends: Sequence[Ends] = (),
    totals: Totals | None = None,
    empty: Empty = separate,
) -> Tensor:
    """`L·W·M`, some rows at a time, so that each page is written once.

    Args:
        weight: The layer's weight before.
        linear: The layer.
        rows: L, transposed; None: rows stay.
        columns: M; None: columns stay.
        ends: What goes of the kernels, axis by axis, of a layer without groups; empty: nothing.
        totals: What sums of columns are, by rows after, where somebody has decided on that.
        empty: Where to write it.
    """
    source = by_row(weight, linear)
    kernel = kernel_of(weight.shape, linear)
    if rows is not None and (linear.groups > 1 or not rows.is_gather):
        source, rows = rows.apply(source, 0), None
    source, places = side_by_side(source, linear.groups), None
    if ends:
        inside = inner_places(kernel, ends)
        kernel, places = tuple(inside.shape), inside.flatten().to(source.device)
        columns = ChannelTransform.identity(source.shape[1]) if columns is None else columns
    rows, columns = (None if one is None else one.to(source.device) for one in (rows, columns))
    count = source.shape[0] if rows is None else rows.after
    size = source.shape[2] if places is None else places.numel()
    result = empty((count, source.shape[1] if columns is None else columns.after, size), source)
    numbers = torch.arange(count)
    room, parts = room_for(numbers, source)
    for part in parts:
        written = result[int(part[0]) : int(part[-1]) + 1]
        piece = _rows(source, rows, part, room)
        if columns is None:
            written.copy_(piece)
        elif places is None:
            columns.apply(piece, 1, written, None if totals is None else totals(part))
        else:
            known = None if totals is None else totals(part).index_select(2, places)
            columns.apply_inside(piece, places, written, known)
    flat = apart(result, linear.groups)
    return flat.view(*flat.shape[:2], *kernel).movedim((0, 1), (linear.row_axis, linear.column_axis)).contiguous()


def _rows(source: Tensor, rows: ChannelTransform | None, part: Tensor, room: Tensor) -> Tensor:
    """Some rows after, times their gains."""
    if rows is None:
        return source[int(part[0]) : int(part[-1]) + 1]
    chosen = rows.rows[int(part[0]) : int(part[-1]) + 1]
    picked = pick_rows(source, chosen, room)
    if rows.sums.scale is None:
        return picked
    wide = torch.promote_types(source.dtype, torch.float32)
    gain = rows.sums.scale[int(part[0]) : int(part[-1]) + 1].to(wide)[:, None, None]
    return torch.mul(picked, gain, out=room[: part.numel()] if wide == source.dtype else None)


def pick_rows(source: Tensor, index: Tensor, room: Tensor | None = None) -> Tensor:
    """Rows by number: a view where they stand in a row, otherwise a copy, made in `room` where that is given."""
    first, count = int(index[0]), index.numel()
    if int(index[-1]) - first + 1 == count and bool((index[1:] > index[:-1]).all()):
        return source[first : first + count]
    index = index.to(source.device)
    return torch.index_select(source, 0, index, out=None if room is None else room[:count])


def room_for(rows: Tensor, source: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Numbers of rows to work on at a time, and room for the largest of these pieces."""
    piece = PIECE if source.device.type == "cpu" else PIECE_ON_DEVICE
    step = max(1, piece // max(1, source.shape[1:].numel()))
    parts = rows.split(step) if rows.numel() else ()
    count = parts[0].numel() if parts else 0
    return scratch((count, *source.shape[1:]), source.dtype, source.device), parts


def write_vector(tensor: Tensor, rows: ChannelTransform | None, offset: Tensor | None = None) -> Tensor:
    """`L·(v + offset)` for a bias."""
    tensor = tensor.detach()
    if offset is not None:
        tensor = (tensor.double() + offset.to(tensor.device)).to(tensor.dtype)
    return tensor.clone() if rows is None or rows.is_identity else rows.apply(tensor, 0)


def scale_axis(tensor: Tensor, gain: Tensor | None, axis: int) -> Tensor:
    """Multiply along an axis."""
    if gain is None:
        return tensor
    wide = torch.promote_types(tensor.dtype, torch.float32)
    shape = [-1 if dimension == axis else 1 for dimension in range(tensor.ndim)]
    return (tensor.to(wide) * gain.to(tensor.device, wide).view(shape)).to(tensor.dtype)


def rescale_norm(
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    gain_in: Tensor | None,
    gain_out: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Norm parameters when the input is scaled by `g_in` and the output shall be by `g_out`, exactly.

    With `a = γ/√(var+ε)` the norm is `a·(x - mean) + β`. Afterwards `mean' = g_in·mean`, `var' = g_in²·var`, and
    `γ' = (g_out/g_in)·a·√(var'+ε)`, so that ε costs nothing; `β' = g_out·β`.
    """
    dtype = weight.dtype
    w, b, m, v = (t.double() for t in (weight, bias, mean, var))
    one = torch.ones((), dtype=torch.float64, device=weight.device)
    g_in = one if gain_in is None else gain_in.to(weight.device).double()
    g_out = one if gain_out is None else gain_out.to(weight.device).double()
    new_var = (g_in.square() * v).to(var.dtype).double()
    if gain_in is not None:
        w = w * torch.sqrt((new_var + eps) / (v + eps)) / g_in
    return (
        (w * g_out).to(dtype),
        (b * g_out).to(dtype),
        (m * g_in).to(mean.dtype),
        new_var.to(var.dtype),
    )


def fold_norm(
    weight: Tensor,
    bias: Tensor | None,
    axis: int,
    gamma: Tensor | None,
    beta: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """A layer that takes up the norm behind it: weight `a·W` and bias `a·(bias - mean) + β`, with `a = γ/√(var+ε)`."""
    factor = torch.rsqrt(var.double() + eps)
    factor = factor if gamma is None else factor * gamma.double()
    shift = -mean.double() if bias is None else bias.double() - mean.double()
    shift = factor * shift if beta is None else factor * shift + beta.double()
    return scale_axis(weight.double(), factor, axis).to(weight.dtype), shift.to(weight.dtype)
