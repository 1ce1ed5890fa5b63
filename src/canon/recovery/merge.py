"""Add up columns of one class, and see what cancels. Pure arithmetic on weights, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from canon.graph import LinearMap
from canon.rewrite import SpaceRewrite
from canon.rewrite.tensors import column_transform
from canon.transforms import ChannelTransform

PIECE = 1 << 21
"""Weights converted to float64 at a time."""


@dataclass(frozen=True, eq=False)
class Merged:
    """A layer's weight over kept rows and classes of columns."""

    weight: Tensor
    """`groups x rows/groups x columns/groups x kernel`."""

    reads: Tensor
    """`groups x rows/groups x columns/groups`, bool: which row reads which column."""

    cancelled: Tensor
    """Per column: the largest ratio of a sum that was taken for zero to what was added up in it."""


def kept_rows(linear: LinearMap, rewrites: Mapping[int, SpaceRewrite]) -> Tensor:
    """Indices of the rows that remain."""
    index = []
    for segment in linear.rows:
        rewrite = rewrites.get(segment.space)
        width = segment.length // segment.repeat
        source = torch.arange(width) if rewrite is None else rewrite.source
        inner = torch.arange(segment.repeat)
        index.append((source[:, None] * segment.repeat + inner).flatten() + segment.offset)
    return torch.cat(index)


def merge_layer(
    weight: Tensor,
    linear: LinearMap,
    rewrites: Mapping[int, SpaceRewrite],
    spread: Tensor,
    floor: float,
    smallest: float = 0.0,
) -> Merged:
    """Merge one layer.

    Args:
        weight: Its weight.
        linear: The layer.
        rewrites: Merges by space id.
        spread: Per column before: how far the channel is from the leader of its class.
        floor: A sum this small against what was added up is zero whatever the spread.
        smallest: How far off a stored number may be however small it is; float16 knows nothing below 6e-8.
    """
    index = kept_rows(linear, rewrites)
    rows = weight.detach()
    if index.numel() != weight.shape[linear.row_axis]:
        rows = rows.index_select(linear.row_axis, index.to(weight.device))
    rows = rows.movedim((linear.row_axis, linear.column_axis), (0, 1))
    rows = rows.reshape(rows.shape[0], rows.shape[1], -1)
    groups, (count, inputs, kernel) = linear.groups, rows.shape
    if not any(s.space in rewrites for s in linear.columns or ()):
        result = rows.view(groups, count // groups, inputs, kernel)
        ratio = torch.zeros(groups * inputs, dtype=torch.float64)
        return Merged(result, (result != 0).any(-1), ratio)
    transform = column_transform(linear, rewrites)
    if groups == 1:
        result, ratio = _merge_columns(rows, transform, spread, floor, smallest)
        result = result[None]
    else:
        # Fold the groups into the input axis: rows/groups x C_in x kernel.
        folded = rows.view(groups, count // groups, inputs, kernel).transpose(0, 1)
        folded = folded.reshape(count // groups, groups * inputs, kernel)
        result, ratio = _merge_columns(folded, transform, spread, floor, smallest)
        result = result.view(count // groups, groups, -1, kernel).transpose(0, 1)
    return Merged(result, (result != 0).any(-1), ratio)


def _merge_columns(
    rows: Tensor, transform: ChannelTransform, spread: Tensor, floor: float, smallest: float
) -> tuple[Tensor, Tensor]:
    """Add up the columns of each class; a sum that is small against what was added up is zero."""
    device = rows.device
    count = torch.bincount(transform.columns, minlength=transform.after)
    several = count[transform.columns] > 1
    result = torch.zeros(rows.shape[0], transform.after, rows.shape[2], dtype=rows.dtype, device=device)
    ratio = torch.zeros(transform.after, dtype=torch.float64)
    single = ~several
    picked = rows.index_select(1, transform.rows[single].to(device))
    values = transform.values[single]
    if not bool((values == 1).all()):
        picked = (picked.double() * values.to(device)[:, None]).to(rows.dtype)
    result.index_copy_(1, transform.columns[single].to(device), picked)
    if not bool(several.any()):
        return result, ratio
    targets, local = torch.unique(transform.columns[several], return_inverse=True)
    members = transform.rows[several]
    factor = transform.values[several].to(device)[:, None]
    widest = torch.zeros(targets.numel(), dtype=torch.float64)
    widest.scatter_reduce_(0, local, spread[members], "amax")
    limit = (8 * widest).clamp(min=floor, max=0.02).to(device)
    rounded = torch.zeros(targets.numel(), dtype=torch.float64)
    rounded.index_add_(0, local, transform.values[several].abs())
    rounded = (smallest * rows.shape[2] ** 0.5 * rounded).to(device)
    members, local, targets = members.to(device), local.to(device), targets.to(device)
    largest = torch.zeros(targets.numel(), dtype=torch.float64, device=device)
    step = max(1, PIECE // max(1, members.numel() * rows.shape[2]))
    for start in range(0, rows.shape[0], step):
        piece = rows[start : start + step].index_select(1, members).double() * factor
        shape = (piece.shape[0], targets.numel(), piece.shape[2])
        total = piece.new_zeros(shape).index_add_(1, local, piece)
        mass = piece.new_zeros(shape[:2]).index_add_(1, local, piece.norm(dim=-1))
        size = total.norm(dim=-1)
        share = size / torch.where(mass > 0, mass, 1.0)
        zero = (share <= limit) | (size <= rounded)
        total = total.masked_fill_(zero[..., None], 0)
        result[start : start + step].index_copy_(1, targets, total.to(rows.dtype))
        largest = torch.maximum(largest, torch.where(zero, share, 0.0).amax(dim=0))
    ratio[targets.cpu()] = largest.cpu()
    return result, ratio


def unfold(merged: Tensor, like: Tensor, linear: LinearMap) -> Tensor:
    """Back from `groups x rows x columns x kernel` to the layout of the layer's weight."""
    groups, rows, columns, _ = merged.shape
    shape = like.movedim((linear.row_axis, linear.column_axis), (0, 1)).shape[2:]
    flat = merged.reshape(groups * rows, columns, *shape)
    return flat.movedim((0, 1), (linear.row_axis, linear.column_axis)).contiguous()
