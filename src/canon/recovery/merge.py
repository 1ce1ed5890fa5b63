"""Add up columns of one class, and see what cancels. Pure arithmetic on weights, in float64.

A layer is read some rows at a time, and only what is decided on is kept: which row reads which column, and the sums.
The merged weight is written when it is known what remains of it, so that nothing of the attacked layer's size ever is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
class _Sums:
    """How columns add up."""

    lead: Tensor
    """For every column after a column before: the first of those that are added up."""

    scale: Tensor
    """For every column after that is one column: its factor. 0 where nothing is added up, 1 for sums of several."""

    targets: Tensor
    """Columns after that are sums of several."""

    members: Tensor
    """Columns before that are added up in them."""

    local: Tensor
    """For every member the number of its target."""

    factor: Tensor
    """For every member its factor."""

    @property
    def after(self) -> int:
        """Columns after."""
        return int(self.lead.numel())

    def patch(self, columns: Tensor, device: torch.device) -> _Patch:
        """What is to be done to some of the columns."""
        scale = self.scale[columns]
        number = torch.full((self.after,), -1, dtype=torch.int64)
        number[self.targets] = torch.arange(self.targets.numel())
        number = number[columns]
        empty, summed = torch.nonzero(scale == 0).flatten(), torch.nonzero(number >= 0).flatten()
        scaled = torch.nonzero((scale != 0) & (scale != 1)).flatten()
        parts = (empty, scaled, scale[scaled], summed, number[summed])
        return _Patch(*(part.to(device) for part in parts))


@dataclass(frozen=True, eq=False)
class Merged:
    """A layer over kept rows and classes of columns."""

    reads: Tensor
    """`groups x rows/groups x columns/groups`, bool: which row reads which column."""

    rim: Tensor | None
    """The same for the outermost ring of each kernel alone; None where it could not be cropped anyway."""

    cancelled: Tensor | None
    """Per column: the largest ratio of a sum that was taken for zero to what was added up; None: nothing was added."""

    source: Tensor
    """`rows/groups x columns x kernel`: the weight as it was, the groups side by side."""

    index: Tensor | None
    """Rows of the source that are kept; None: all."""

    sums: _Sums | None
    """How columns add up; None: they stay."""

    totals: Tensor | None
    """`rows/groups x sums x kernel`: the columns that are sums of several."""

    @property
    def weight(self) -> Tensor:
        """`groups x rows/groups x columns/groups x kernel`: all of it."""
        groups, rows, columns = self.reads.shape
        whole = self.take(torch.arange(rows), torch.arange(groups * columns))
        return whole.view(rows, groups, columns, -1).transpose(0, 1)

    def take(self, rows: Tensor, columns: Tensor, places: Tensor | None = None) -> Tensor:
        """Some rows, columns and places of the kernel: `rows x columns x places`, the groups side by side."""
        source, sums, device = self.source, self.sums, self.source.device
        origin = rows if self.index is None else self.index[rows]
        column = columns if sums is None else sums.lead[columns]
        origin, column, rows = origin.to(device), column.to(device), rows.to(device)
        patch = None if sums is None else sums.patch(columns, device)
        size = source.shape[2] if places is None else places.numel()
        places = None if places is None else places.to(device)
        result = source.new_empty(rows.numel(), columns.numel(), size)
        for start, stop in _pieces(rows.numel(), source):
            piece = source.index_select(0, origin[start:stop])
            written = result[start:stop]
            whole = torch.index_select(piece, 1, column) if places is not None else None
            if whole is None:
                whole = torch.index_select(piece, 1, column, out=written)
            if patch is not None:
                patch.apply(whole, self.totals, rows[start:stop])
            if places is not None:
                torch.index_select(whole, 2, places, out=written)
        return result


@dataclass(frozen=True, eq=False)
class _Patch:
    """What of chosen columns is not one column as it was."""

    empty: Tensor
    scaled: Tensor
    scale: Tensor
    summed: Tensor
    total: Tensor

    def apply(self, columns: Tensor, totals: Tensor | None, rows: Tensor) -> None:
        """Write it into `rows x columns x kernel`."""
        if self.empty.numel():
            columns.index_fill_(1, self.empty, 0)
        if self.scaled.numel():
            alone = columns.index_select(1, self.scaled).double() * self.scale[:, None]
            columns.index_copy_(1, self.scaled, alone.to(columns.dtype))
        if totals is not None and self.summed.numel():
            columns.index_copy_(1, self.summed, totals.index_select(0, rows).index_select(1, self.total))


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
    source = weight.detach().movedim((linear.row_axis, linear.column_axis), (0, 1))
    rim = _rim(source.shape[2:]) if linear.cropping and min(linear.cropping) > 0 else None
    source = source.reshape(source.shape[0], source.shape[1], -1)
    groups, (count, inputs, kernel) = linear.groups, source.shape
    if groups > 1:
        # Fold the groups into the input axis: rows/groups x C_in x kernel.
        source = source if index is None else source.index_select(0, index.to(weight.device))
        count, index = source.shape[0], None
        source = source.view(groups, count // groups, inputs, kernel).transpose(0, 1)
        source = source.reshape(count // groups, groups * inputs, kernel)
    sums = _sums(linear, merges) if any(s.space in merges for s in linear.columns or ()) else None
    reads, rims, ratio, totals = _look(source, index, sums, rim, spread, floor, smallest)
    reads = reads.view(reads.shape[0], groups, -1).transpose(0, 1)
    rims = None if rims is None else rims.view(rims.shape[0], groups, -1).transpose(0, 1)
    return Merged(reads, rims, ratio, source, index, sums, totals)


def _rim(kernel: Sequence[int]) -> Tensor | None:
    """Which places of a flattened kernel are on its outermost ring; None where that is all of it."""
    if min(kernel, default=0) < 3:
        return None
    inside = torch.zeros(tuple(kernel), dtype=torch.bool)
    inside[(slice(1, -1),) * len(kernel)] = True
    return ~inside.flatten()


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
    scale = torch.where(count == 1, factor[lead], (count > 1).double())
    targets = torch.nonzero(count > 1).flatten()
    member = count[target] > 1
    number = torch.cumsum(count > 1, 0) - 1
    members = order[member]
    return _Sums(lead, scale, targets, members, number[target[member]], factor[members])


_Look = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def _look(
    source: Tensor,
    index: Tensor | None,
    sums: _Sums | None,
    rim: Tensor | None,
    spread: Tensor,
    floor: float,
    smallest: float,
) -> _Look:
    """Go through a layer's kept rows: what is read, what the rims hold, what cancelled, and the sums."""
    device, kernel = source.device, source.shape[2]
    count = source.shape[0] if index is None else index.numel()
    columns = source.shape[1] if sums is None else sums.after
    reads = torch.empty(count, columns, dtype=torch.bool, device=device)
    rims = None if rim is None else torch.empty_like(reads)
    rim = None if rim is None else rim.to(device, source.dtype)
    index = None if index is None else index.to(device)
    several = sums is not None and sums.targets.numel() > 0
    adder = _Adder(sums, count, source, spread, floor, smallest * kernel**0.5) if sums is not None and several else None
    named = None if sums is None else (sums.lead.to(device), (sums.scale == 0).to(device))
    for start, stop in _pieces(count, source):
        piece = source[start:stop] if index is None else source.index_select(0, index[start:stop])
        found = _nonzero(piece, rim)
        if named is not None:
            found = [part.index_select(1, named[0]).masked_fill_(named[1], False) for part in found]
        if adder is not None:
            total = adder.add(piece, start, stop)
            for part, summed in zip(found, _nonzero(total, rim), strict=True):
                part.index_copy_(1, adder.targets, summed)
        reads[start:stop] = found[0]
        if rims is not None:
            rims[start:stop] = found[1]
    if adder is None:
        return reads, rims, None, None
    return reads, rims, adder.ratio(columns), adder.totals


class _Adder:
    """Adds up the columns of each class; a sum that is small against what was added up is zero."""

    def __init__(self, sums: _Sums, count: int, source: Tensor, spread: Tensor, floor: float, smallest: float) -> None:
        device = source.device
        self.targets, self.members, self.local = (x.to(device) for x in (sums.targets, sums.members, sums.local))
        self.factor = sums.factor.to(device)[:, None]
        limit, rounded = _limits(sums, spread, floor, smallest)
        self.limit, self.rounded = limit.to(device), rounded.to(device)
        self.totals = source.new_empty(count, sums.targets.numel(), source.shape[2])
        self.largest = torch.zeros(sums.targets.numel(), dtype=torch.float64, device=device)

    def add(self, piece: Tensor, start: int, stop: int) -> Tensor:
        """The sums of some rows."""
        terms = piece.index_select(1, self.members).double() * self.factor
        total = terms.new_zeros(terms.shape[0], self.limit.numel(), terms.shape[2]).index_add_(1, self.local, terms)
        mass = terms.new_zeros(total.shape[:2]).index_add_(1, self.local, torch.linalg.vector_norm(terms, dim=-1))
        size = torch.linalg.vector_norm(total, dim=-1)
        share = size / torch.where(mass > 0, mass, 1.0)
        zero = (share <= self.limit) | (size <= self.rounded)
        self.largest = torch.maximum(self.largest, torch.where(zero, share, 0.0).amax(dim=0))
        written = self.totals[start:stop]
        return written.copy_(total.masked_fill_(zero[..., None], 0))

    def ratio(self, columns: int) -> Tensor:
        """Per column: the largest ratio of a sum that was taken for zero to what was added up in it."""
        ratio = torch.zeros(columns, dtype=torch.float64)
        ratio[self.targets.cpu()] = self.largest.cpu()
        return ratio


def _limits(sums: _Sums, spread: Tensor, floor: float, smallest: float) -> tuple[Tensor, Tensor]:
    """Per sum: what is zero relative to what was added up, and what is zero however little was added up."""
    widest = torch.zeros(sums.targets.numel(), dtype=torch.float64)
    rounded = torch.zeros_like(widest)
    if sums.targets.numel():
        widest.scatter_reduce_(0, sums.local, spread[sums.members], "amax")
        rounded.index_add_(0, sums.local, sums.factor.abs())
    return (8 * widest).clamp(min=floor, max=0.02), smallest * rounded


def _pieces(count: int, rows: Tensor) -> list[tuple[int, int]]:
    """Stretches of rows to work on at a time."""
    piece = PIECE if rows.device.type == "cpu" else PIECE_ON_DEVICE
    step = max(1, piece // max(1, rows.shape[1] * rows.shape[2]))
    return [(start, min(start + step, count)) for start in range(0, count, step)]


def _nonzero(weight: Tensor, rim: Tensor | None) -> list[Tensor]:
    """Which kernels hold anything, and with a rim which hold anything there, over the last axis."""
    kernel = weight.shape[-1]
    if kernel == 1:
        return [weight.squeeze(-1) != 0]
    if weight.dtype not in (torch.float32, torch.float64):
        weight = weight.float()
    # A product is several times faster than `any` over a short axis.
    size = weight.abs()
    found = [size @ weight.new_ones(kernel) != 0]
    if rim is not None:
        found.append(size @ rim.to(size.dtype) != 0)
    return found


def inner_places(kernel: Sequence[int]) -> Tensor:
    """Places of a flattened kernel that are not on its outermost ring."""
    rim = _rim(kernel)
    assert rim is not None, "only what has an inside is cropped"
    return torch.nonzero(~rim).flatten()


def unfold(merged: Tensor, like: Tensor, linear: LinearMap, rings: int = 0) -> Tensor:
    """Back from `groups x rows x columns x kernel` to the layout of the layer's weight, its kernel less some rings."""
    groups, rows, columns, _ = merged.shape
    kernel = like.movedim((linear.row_axis, linear.column_axis), (0, 1)).shape[2:]
    flat = merged.reshape(groups * rows, columns, *(size - 2 * rings for size in kernel))
    return flat.movedim((0, 1), (linear.row_axis, linear.column_axis)).contiguous()
