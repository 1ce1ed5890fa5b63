"""What a rewrite does to tensors: pure arithmetic, no modules.

Letters: `W[o, i, ...]` a weight, `g` gains after the rewrite (one per channel), `M` the consumer's transform.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from canon._memory import separate
from canon.transforms import ChannelTransform

PIECE: Final = 1 << 17
"""Weights moved at a time on the host: what a core's cache holds."""


@dataclass(frozen=True, eq=False)
class Move:
    """Where the entries of an axis come from, and what they are multiplied by."""

    index: Tensor | None = None
    """None: they stay where they are."""

    gain: Tensor | None = None
    """None: by 1."""


def scale_axis(tensor: Tensor, gain: Tensor | None, axis: int, repeat: int = 1) -> Tensor:
    """Multiply along an axis; `gain` has one entry per channel, the axis `repeat` entries per channel."""
    if gain is None:
        return tensor
    wide = torch.promote_types(tensor.dtype, torch.float32)
    factor = gain.to(tensor.device)
    if repeat > 1:
        factor = factor.repeat_interleave(repeat)
    shape = [1] * tensor.ndim
    shape[axis] = -1
    return (tensor.to(wide) * factor.to(wide).view(shape)).to(tensor.dtype)


def gather_axis(tensor: Tensor, source: Tensor, axis: int, repeat: int = 1) -> Tensor:
    """Take channels along an axis that has `repeat` entries per channel."""
    index = source.to(tensor.device)
    if repeat > 1:
        inner = torch.arange(repeat, device=tensor.device)
        index = (index[:, None] * repeat + inner).flatten()
    return tensor.index_select(axis, index)


def move_axes(weight: Tensor, first: Move, second: Move) -> Tensor:
    """`W'[k, l] = g[k]·h[l]·W[i[k], j[l]]` over the first two axes, some rows at a time: each page is written once."""
    weight, device = weight.detach(), weight.device
    wide = torch.promote_types(weight.dtype, torch.float32)
    rows, columns = (None if move.index is None else move.index.to(device) for move in (first, second))
    gains = [None if move.gain is None else move.gain.to(device, wide) for move in (first, second)]
    shape = [old if new is None else new.numel() for old, new in zip(weight.shape, (rows, columns), strict=False)]
    result = separate((*shape, *weight.shape[2:]), weight)
    ones = [1] * (weight.ndim - 1)
    step = max(1, PIECE // max(1, prod(result.shape[1:]))) if device.type == "cpu" else shape[0]
    for start in range(0, shape[0], step):
        stretch = slice(start, start + step)
        picked = (weight[stretch] if rows is None else weight.index_select(0, rows[stretch])).to(wide)
        target = result[stretch]
        moved = target if wide == weight.dtype else torch.empty_like(target, dtype=wide)
        if columns is None:
            moved.copy_(picked)
        else:
            torch.index_select(picked, 1, columns, out=moved)
        if gains[0] is not None:
            moved.mul_(gains[0][stretch].view(-1, *ones))
        if gains[1] is not None:
            moved.mul_(gains[1].view(1, -1, *ones[1:]))
        if moved is not target:
            target.copy_(moved)
    return result


def apply_grouped(transform: ChannelTransform, weight: Tensor, groups: int) -> Tensor:
    """`W·M` for a grouped convolution, `W[o, i/G, ...]`, with M block-diagonal over the groups.

    The groups are folded into the input axis, `W[G·i/G, o/G, ...]`, so that M applies as it is.
    """
    out, inner = weight.shape[0], weight.shape[1]
    kernel = weight.shape[2:]
    folded = weight.view(groups, out // groups, inner, *kernel).transpose(1, 2)
    folded = folded.reshape(groups * inner, out // groups, *kernel)
    result = transform.apply(folded, 0)
    inner = result.shape[0] // groups
    result = result.view(groups, inner, out // groups, *kernel).transpose(1, 2)
    return result.reshape(out, inner, *kernel)


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
    shape = [1] * weight.ndim
    shape[axis] = -1
    return (weight.double() * factor.view(shape)).to(weight.dtype), shift.to(weight.dtype)
