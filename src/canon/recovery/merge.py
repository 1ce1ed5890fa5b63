"""Add up columns of one class, and see what cancels. Pure arithmetic on weights, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from canon.graph import LinearMap
from canon.rewrite import SpaceRewrite
from canon.rewrite.tensors import column_transform


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
) -> Merged:
    """Merge one layer.

    Args:
        weight: Its weight.
        linear: The layer.
        rewrites: Merges by space id.
        spread: Per column before: how far the channel is from the leader of its class.
        floor: A sum this small against what was added up is zero whatever the spread.
    """
    rows = weight.detach().index_select(linear.row_axis, kept_rows(linear, rewrites).to(weight.device))
    rows = rows.movedim((linear.row_axis, linear.column_axis), (0, 1))
    groups, inputs = linear.groups, rows.shape[1]
    # columns first: C_in x rows/groups x kernel
    folded = rows.reshape(groups, rows.shape[0] // groups, inputs, -1).transpose(1, 2)
    folded = folded.reshape(groups * inputs, rows.shape[0] // groups, -1)
    touched = any(s.space in rewrites for s in linear.columns or ())
    if not touched:
        result, ratio = folded, torch.zeros(folded.shape[0], dtype=torch.float64)
    else:
        result, ratio = _merge_columns(folded, linear, rewrites, spread, floor)
    kernel = folded.shape[-1]
    result = result.view(groups, -1, rows.shape[0] // groups, kernel).transpose(1, 2)
    return Merged(result, (result != 0).any(-1), ratio)


def _merge_columns(
    folded: Tensor,
    linear: LinearMap,
    rewrites: Mapping[int, SpaceRewrite],
    spread: Tensor,
    floor: float,
) -> tuple[Tensor, Tensor]:
    transform = column_transform(linear, rewrites)
    device = folded.device
    count = torch.bincount(transform.columns, minlength=transform.after)
    several = count[transform.columns] > 1
    result = torch.zeros(transform.after, *folded.shape[1:], dtype=folded.dtype, device=device)
    ratio = torch.zeros(transform.after, dtype=torch.float64)
    single = ~several
    rows, columns = transform.rows[single].to(device), transform.columns[single].to(device)
    picked = folded.index_select(0, rows)
    values = transform.values[single]
    if not bool((values == 1).all()):
        picked = (picked.double() * values.to(device)[:, None, None]).to(folded.dtype)
    result.index_copy_(0, columns, picked)
    if bool(several.any()):
        targets, local = torch.unique(transform.columns[several], return_inverse=True)
        factor = transform.values[several].to(device)
        rows = transform.rows[several]
        picked = folded.index_select(0, rows.to(device)).double() * factor[:, None, None]
        local = local.to(device)
        shape = (targets.numel(), *folded.shape[1:])
        total = torch.zeros(shape, dtype=torch.float64, device=device).index_add_(0, local, picked)
        mass = torch.zeros(shape[:2], dtype=torch.float64, device=device)
        mass.index_add_(0, local, picked.norm(dim=-1))
        widest = torch.zeros(targets.numel(), dtype=torch.float64)
        widest.scatter_reduce_(0, local.cpu(), spread[rows], "amax")
        limit = (8 * widest).clamp(min=floor, max=0.02).to(device)
        share = total.norm(dim=-1) / torch.where(mass > 0, mass, 1.0)
        zero = share <= limit[:, None]
        total = torch.where(zero[..., None], torch.zeros_like(total), total)
        result.index_copy_(0, targets.to(device), total.to(folded.dtype))
        ratio[targets] = torch.where(zero, share, 0.0).amax(dim=1).cpu()
    return result, ratio


def unfold(merged: Tensor, like: Tensor, linear: LinearMap) -> Tensor:
    """Back from `groups x rows x columns x kernel` to the layout of the layer's weight."""
    groups, rows, columns, _ = merged.shape
    shape = like.movedim((linear.row_axis, linear.column_axis), (0, 1)).shape[2:]
    flat = merged.reshape(groups * rows, columns, *shape)
    return flat.movedim((0, 1), (linear.row_axis, linear.column_axis)).contiguous()
