"""Add up columns of one class, and see what cancels. Pure arithmetic on weights, in float64.

A layer is read once, some rows at a time, so that nothing of the attacked layer's size is ever written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from canon.graph import LinearMap

PIECE = 1 << 19
"""Weights worked on at a time on the host: what a core's cache holds."""

PIECE_ON_DEVICE = 1 << 26
"""The same on a device, where every step costs a launch."""


@dataclass(frozen=True, eq=False)
class SpaceMerge:
    """What becomes of a space's channels when each class is merged into one."""

    keep: Tensor
    """The channels that stand for their classes, in order."""

    into: Tensor
    """For every channel its place among them, negative for one that is zero."""

    factors: Mapping[int, Tensor] = field(default_factory=dict)
    """By tap: channel = factor x what it is merged into; 1 where a tap is not listed."""


Merges = Mapping[int, SpaceMerge]
"""By space id; a space that is not listed stays."""


@dataclass(frozen=True, eq=False)
class Merged:
    """A layer's weight over kept rows and classes of columns."""

    weight: Tensor
    """`groups x rows/groups x columns/groups x kernel`."""

    reads: Tensor
    """`groups x rows/groups x columns/groups`, bool: which row reads which column."""

    cancelled: Tensor | None
    """Per column: the largest ratio of a sum that was taken for zero to what was added up; None: nothing was added."""


@dataclass(frozen=True, eq=False)
class _Sums:
    """How columns add up."""

    lead: Tensor
    """For every column after a column before: the first of those that are added up."""

    empty: Tensor
    """Columns after that nothing is added up in."""

    scaled: Tensor
    """Columns after that are one column times a factor other than 1."""

    scale: Tensor
    """Those factors."""

    targets: Tensor
    """Columns after that are sums of several."""

    members: Tensor
    """Columns before that are added up in them."""

    local: Tensor
    """For every member the number of its target."""

    factor: Tensor
    """For every member its factor."""

    after: int


def kept_rows(linear: LinearMap, merges: Merges) -> Tensor | None:
    """Indices of the rows that remain; None: all of them."""
    if not any(segment.space in merges for segment in linear.rows):
        return None
    index = []
    for segment in linear.rows:
        merge = merges.get(segment.space)
        source = torch.arange(segment.length // segment.repeat) if merge is None else merge.keep
        if segment.repeat > 1:
            source = (source[:, None] * segment.repeat + torch.arange(segment.repeat)).flatten()
        index.append(source + segment.offset)
    return torch.cat(index)


def merge_layer(
    weight: Tensor,
    linear: LinearMap,
    merges: Merges,
    spread: Tensor,
    floor: float,
    smallest: float = 0.0,
) -> Merged:
    """Merge one layer.

    Args:
        weight: Its weight.
        linear: The layer.
        merges: What happens to spaces.
        spread: Per column before: how far the channel is from the leader of its class.
        floor: A sum this small against what was added up is zero whatever the spread.
        smallest: How far off a stored number may be however small it is; float16 knows nothing below 6e-8.
    """
    index = kept_rows(linear, merges)
    rows = weight.detach().movedim((linear.row_axis, linear.column_axis), (0, 1))
    rows = rows.reshape(rows.shape[0], rows.shape[1], -1)
    groups, (_, inputs, kernel) = linear.groups, rows.shape
    merged = any(s.space in merges for s in linear.columns or ())
    if groups == 1 and merged:
        result, reads, ratio = _merge_columns(rows, index, _sums(linear, merges), spread, floor, smallest)
        return Merged(result[None], reads[None], ratio)
    if index is not None:
        rows = rows.index_select(0, index.to(weight.device))
    count = rows.shape[0]
    if not merged:
        result = rows.view(groups, count // groups, inputs, kernel)
        step = max(1, (_pieces(count, rows)[0][1]) // groups)
        return Merged(result, torch.cat([_nonzero(piece) for piece in result.split(step, dim=1)], dim=1), None)
    # Fold the groups into the input axis: rows/groups x C_in x kernel.
    folded = rows.view(groups, count // groups, inputs, kernel).transpose(0, 1)
    folded = folded.reshape(count // groups, groups * inputs, kernel)
    result, reads, ratio = _merge_columns(folded, None, _sums(linear, merges), spread, floor, smallest)
    result = result.view(count // groups, groups, -1, kernel).transpose(0, 1)
    return Merged(result, reads.view(count // groups, groups, -1).transpose(0, 1), ratio)


def _sums(linear: LinearMap, merges: Merges) -> _Sums:
    """The columns of a layer, one stretch per segment."""
    places, factors, after = [], [], 0
    for segment in linear.columns or ():
        merge, repeat = merges.get(segment.space), segment.repeat
        width = segment.length // repeat
        place = torch.arange(width) if merge is None else merge.into
        factor = None if merge is None else merge.factors.get(segment.tap)
        factor = torch.ones(width, dtype=torch.float64) if factor is None else factor
        if repeat > 1:
            inner = torch.arange(repeat)
            place = torch.where(place[:, None] < 0, -1, place[:, None] * repeat + inner).flatten()
            factor = factor.repeat_interleave(repeat)
        places.append(torch.where(place < 0, -1, place + after))
        factors.append(factor)
        after += (width if merge is None else merge.keep.numel()) * repeat
    place, factor = torch.cat(places), torch.cat(factors)
    used = torch.nonzero(place >= 0).flatten()
    order = used[torch.argsort(place[used], stable=True)]
    target = place[order]
    count = torch.bincount(target, minlength=after)
    start = (torch.cumsum(count, 0) - count).clamp(max=max(0, order.numel() - 1))
    lead = order[start] if order.numel() else torch.zeros(after, dtype=torch.int64)
    scaled = torch.nonzero((count == 1) & (factor[lead] != 1)).flatten()
    targets = torch.nonzero(count > 1).flatten()
    member = count[target] > 1
    number = torch.cumsum(count > 1, 0) - 1
    members = order[member]
    return _Sums(
        lead=lead, empty=torch.nonzero(count == 0).flatten(), scaled=scaled, scale=factor[lead[scaled]],
        targets=targets, members=members, local=number[target[member]], factor=factor[members], after=after,
    )  # fmt: skip


def _merge_columns(
    rows: Tensor, index: Tensor | None, sums: _Sums, spread: Tensor, floor: float, smallest: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Add up the columns of each class; a sum that is small against what was added up is zero."""
    device, kernel = rows.device, rows.shape[2]
    count = rows.shape[0] if index is None else index.numel()
    result = torch.empty(count, sums.after, kernel, dtype=rows.dtype, device=device)
    reads = torch.empty(count, sums.after, dtype=torch.bool, device=device)
    lead, empty, scaled, targets, members, local = (
        part.to(device) for part in (sums.lead, sums.empty, sums.scaled, sums.targets, sums.members, sums.local)
    )
    scale, factor = sums.scale.to(device)[:, None], sums.factor.to(device)[:, None]
    limit, rounded = (x.to(device) for x in _limits(sums, spread, floor, smallest * kernel**0.5))
    largest = torch.zeros(targets.numel(), dtype=torch.float64, device=device)
    index = None if index is None else index.to(device)
    for start, stop in _pieces(count, rows):
        piece = rows[start:stop] if index is None else rows.index_select(0, index[start:stop])
        written = result[start:stop]
        torch.index_select(piece, 1, lead, out=written)
        if sums.empty.numel():
            written.index_fill_(1, empty, 0)
        if sums.scaled.numel():
            alone = written.index_select(1, scaled).double() * scale
            written.index_copy_(1, scaled, alone.to(rows.dtype))
        if sums.targets.numel():
            total, share, zero = _added(piece, members, factor, local, limit, rounded)
            written.index_copy_(1, targets, total.to(rows.dtype))
            largest = torch.maximum(largest, torch.where(zero, share, 0.0).amax(dim=0))
        reads[start:stop] = _nonzero(written)
    if not sums.targets.numel():
        return result, reads, None
    ratio = torch.zeros(sums.after, dtype=torch.float64)
    ratio[sums.targets] = largest.cpu()
    return result, reads, ratio


def _limits(sums: _Sums, spread: Tensor, floor: float, smallest: float) -> tuple[Tensor, Tensor]:
    """Per sum: what is zero relative to what was added up, and what is zero however little was added up."""
    widest = torch.zeros(sums.targets.numel(), dtype=torch.float64)
    rounded = torch.zeros_like(widest)
    if sums.targets.numel():
        widest.scatter_reduce_(0, sums.local, spread[sums.members], "amax")
        rounded.index_add_(0, sums.local, sums.factor.abs())
    return (8 * widest).clamp(min=floor, max=0.02), smallest * rounded


def _added(
    piece: Tensor, members: Tensor, factor: Tensor, local: Tensor, limit: Tensor, rounded: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of some rows, how large they are relative to what was added up, and which of them are zero."""
    terms = piece.index_select(1, members).double() * factor
    total = terms.new_zeros(terms.shape[0], limit.numel(), terms.shape[2]).index_add_(1, local, terms)
    mass = terms.new_zeros(total.shape[:2]).index_add_(1, local, torch.linalg.vector_norm(terms, dim=-1))
    size = torch.linalg.vector_norm(total, dim=-1)
    share = size / torch.where(mass > 0, mass, 1.0)
    zero = (share <= limit) | (size <= rounded)
    return total.masked_fill_(zero[..., None], 0), share, zero


def _pieces(count: int, rows: Tensor) -> list[tuple[int, int]]:
    """Stretches of rows to work on at a time."""
    piece = PIECE if rows.device.type == "cpu" else PIECE_ON_DEVICE
    step = max(1, piece // max(1, rows.shape[1] * rows.shape[2]))
    return [(start, min(start + step, count)) for start in range(0, count, step)]


def _nonzero(weight: Tensor) -> Tensor:
    """Which kernels hold anything, over the last axis."""
    kernel = weight.shape[-1]
    if kernel == 1:
        return weight.squeeze(-1) != 0
    if weight.dtype not in (torch.float32, torch.float64):
        return (weight != 0).any(-1)
    ones = torch.ones(kernel, dtype=weight.dtype, device=weight.device)
    return weight.abs() @ ones != 0  # several times faster than `any`


def unfold(merged: Tensor, like: Tensor, linear: LinearMap) -> Tensor:
    """Back from `groups x rows x columns x kernel` to the layout of the layer's weight."""
    groups, rows, columns, _ = merged.shape
    shape = like.movedim((linear.row_axis, linear.column_axis), (0, 1)).shape[2:]
    flat = merged.reshape(groups * rows, columns, *shape)
    return flat.movedim((0, 1), (linear.row_axis, linear.column_axis)).contiguous()
