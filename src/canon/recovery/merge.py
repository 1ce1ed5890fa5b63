"""Add up columns of one class, and see what cancels. Pure arithmetic on weights, in float64.

A layer is read some rows at a time, and only what is decided on is kept: which row reads which column, and the sums.
The merged weight is written when it is known what remains of it, so that nothing of the attacked layer's size ever is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from canon.graph import LinearMap
from canon.recovery.marks import Marks
from canon.recovery.sums import Adder, Merges, Sums, sums_of

PIECE = 1 << 19
"""Weights worked on at a time on the host: what a core's cache holds."""

PIECE_ON_DEVICE = 1 << 26
"""The same on a device, where every step costs a launch."""


@dataclass(frozen=True, eq=False)
class Merged:
    """A layer over kept rows and classes of columns."""

    reads: Marks
    """Which row reads which column."""

    rim: Tensor | None
    """Rows that hold anything on the outermost ring of a kernel; None where it cannot be cropped, or not here."""

    cancelled: Tensor | None
    """Per column: the largest ratio of a sum that was taken for zero to what was added up; None: nothing was added."""

    fetch: Callable[[], Tensor]
    """Gives the weight as it was, `rows/groups x columns x kernel`, the groups side by side."""

    index: Tensor | None
    """Rows of the source that are kept; None: all."""

    sums: Sums | None
    """How columns add up; None: they stay."""

    totals: Tensor | None
    """`rows/groups x sums x kernel`: the columns that are sums of several."""

    @property
    def weight(self) -> Tensor:
        """`groups x rows/groups x columns/groups x kernel`: all of it."""
        return self.whole()

    def whole(self, crop: Sequence[int] | None = None) -> Tensor:
        """All of it, or with a kernel's shape all but the outermost ring."""
        (groups, rows), columns = self.reads.rows.shape, self.reads.columns.shape[1]
        taken = self.take(torch.arange(rows), torch.arange(groups * columns), crop)
        return taken.view(rows, groups, columns, -1).transpose(0, 1)

    def take(self, rows: Tensor, columns: Tensor, crop: Sequence[int] | None = None) -> Tensor:
        """Some rows and columns: `rows x columns x kernel`, the groups side by side.

        Args:
            rows: Numbers of kept rows.
            columns: Numbers of columns after the merge.
            crop: The kernel's shape, to leave its outermost ring out.
        """
        source, sums = _inside(self.fetch(), crop), self.sums
        device = source.device
        origin = rows if self.index is None else self.index[rows]
        column = columns if sums is None else sums.lead[columns]
        origin, column, rows = origin.to(device), column.to(device), rows.to(device)
        patch = None if sums is None else sums.patch(columns, device)
        totals = None if self.totals is None else _inside(self.totals, crop).flatten(2)
        result = source.new_empty(rows.numel(), columns.numel(), source.shape[2:].numel())
        for start, stop in _pieces(rows.numel(), source):
            piece = source.index_select(0, origin[start:stop]).flatten(2)
            written = torch.index_select(piece, 1, column, out=result[start:stop])
            if patch is not None:
                patch.apply(written, totals, rows[start:stop])
        return result


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
    weight: Callable[[], Tensor],
    linear: LinearMap,
    merges: Merges,
    spread: Tensor,
    floor: float,
    smallest: float = 0.0,
) -> Merged:
    """Merge one layer.

    Args:
        weight: Gives its weight; asked again when the merged weight is written, so that nobody has to keep it.
        linear: The layer.
        merges: What happens to spaces.
        spread: Per column before: how far the channel is from the leader of its class.
        floor: A sum this small against what was added up is zero whatever the spread.
        smallest: How far off a stored number may be however small it is; float16 knows nothing below 6e-8.
    """
    index, groups, whole = kept_rows(linear, merges), linear.groups, weight()
    rim = None
    if groups == 1 and linear.cropping and min(linear.cropping) > 0:
        rim = _rim(kernel_of(whole.shape, linear))
    source = _side_by_side(whole, linear, index)
    fetch = partial(_fetched, weight, linear, index)
    if groups > 1:
        index = None  # the rows are chosen before they are put side by side
    sums = sums_of(linear, merges) if any(s.space in merges for s in linear.columns or ()) else None
    reads, rims, ratio, totals = _look(source, index, sums, rim, spread, floor, smallest)
    marks = Marks.of(reads.view(reads.shape[0], groups, -1).transpose(0, 1).contiguous())
    return Merged(marks, rims, ratio, fetch, index, sums, totals)


def _fetched(weight: Callable[[], Tensor], linear: LinearMap, index: Tensor | None) -> Tensor:
    return _side_by_side(weight(), linear, index)


def _side_by_side(weight: Tensor, linear: LinearMap, index: Tensor | None) -> Tensor:
    """A weight as `rows x columns x kernel`; with groups, their kept rows lie side by side: `rows/groups x C_in`."""
    source = weight.detach().movedim((linear.row_axis, linear.column_axis), (0, 1))
    source = source.reshape(source.shape[0], source.shape[1], -1)
    if linear.groups == 1:
        return source
    source = source if index is None else source.index_select(0, index.to(source.device))
    count, inputs, kernel = source.shape
    source = source.view(linear.groups, count // linear.groups, inputs, kernel).transpose(0, 1)
    return source.reshape(count // linear.groups, linear.groups * inputs, kernel)


def _rim(kernel: Sequence[int]) -> Tensor | None:
    """Which places of a flattened kernel are on its outermost ring; None where that is all of it."""
    if min(kernel, default=0) < 3:
        return None
    inside = torch.zeros(tuple(kernel), dtype=torch.bool)
    inside[(slice(1, -1),) * len(kernel)] = True
    return ~inside.flatten()


_Look = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def _look(
    source: Tensor,
    index: Tensor | None,
    sums: Sums | None,
    rim: Tensor | None,
    spread: Tensor,
    floor: float,
    smallest: float,
) -> _Look:
    """Go through a layer's kept rows: what is read, which rows hold anything on the rim, what cancelled, the sums."""
    device, kernel = source.device, source.shape[2]
    count = source.shape[0] if index is None else index.numel()
    columns = source.shape[1] if sums is None else sums.after
    reads = torch.empty(count, columns, dtype=torch.bool, device=device)
    rims = None if rim is None else torch.empty(count, dtype=torch.bool, device=device)
    along = None if rim is None else _along(rim, source, sums)
    index = None if index is None else index.to(device)
    several = sums is not None and sums.targets.numel() > 0
    adder = Adder(sums, count, source, spread, floor, smallest * kernel**0.5) if sums is not None and several else None
    named = None if sums is None else (sums.lead.to(device), (sums.scale == 0).to(device))
    pieces = _pieces(count, source)
    # Written over and over: fresh memory costs more than all that is computed here.
    scratch = source.new_empty(2, pieces[0][1], *source.shape[1:])
    for start, stop in pieces:
        piece, size = source[start:stop], scratch[1, : stop - start]
        if index is not None:
            piece = torch.index_select(source, 0, index[start:stop], out=scratch[0, : stop - start])
        found = _nonzero(torch.abs(piece, out=size))
        if named is not None:
            found = found.index_select(1, named[0]).masked_fill_(named[1], False)
        if along is not None and rims is not None:
            torch.ne(size.flatten(1) @ along, 0, out=rims[start:stop])
        if adder is not None:
            total = adder.add(piece, start, stop).abs()
            found.index_copy_(1, adder.targets, _nonzero(total))
            if rim is not None and rims is not None:
                rims[start:stop] |= (total @ rim.to(total) != 0).any(dim=1)
        reads[start:stop] = found
    rims = None if rims is None else rims.cpu()
    return reads, rims, None if adder is None else adder.ratio(columns), None if adder is None else adder.totals


def _along(rim: Tensor, source: Tensor, sums: Sums | None) -> Tensor:
    """1 for every entry of a row that is on a rim, in a column that stays as it is."""
    stays = torch.ones(source.shape[1], dtype=torch.bool)
    if sums is not None:
        stays[:] = False
        alone = sums.scale != 0
        alone[sums.targets] = False
        stays[sums.lead[alone]] = True
    return (stays[:, None] & rim).flatten().to(source)


def _pieces(count: int, rows: Tensor) -> list[tuple[int, int]]:
    """Stretches of rows to work on at a time."""
    piece = PIECE if rows.device.type == "cpu" else PIECE_ON_DEVICE
    step = max(1, piece // max(1, rows.shape[1:].numel()))
    return [(start, min(start + step, count)) for start in range(0, count, step)]


def _nonzero(size: Tensor) -> Tensor:
    """Which kernels hold anything, over the last axis; given the magnitudes."""
    if size.shape[-1] == 1:
        return size.squeeze(-1) != 0
    if size.dtype not in (torch.float32, torch.float64):
        size = size.float()
    # A product is several times faster than `any` over a short axis.
    return size @ size.new_ones(size.shape[-1]) != 0


def _inside(weight: Tensor, crop: Sequence[int] | None) -> Tensor:
    """`rows x columns x kernel` without the outermost ring of a kernel of this shape, which is then not flat."""
    if crop is None:
        return weight
    inside: Tensor = weight.unflatten(2, tuple(crop))[(slice(None), slice(None), *(slice(1, -1) for _ in crop))]
    return inside


def unfold(merged: Tensor, shape: Sequence[int], linear: LinearMap, rings: int = 0) -> Tensor:
    """Back from `groups x rows x columns x kernel` to the layout of a weight of this shape, less some rings."""
    groups, rows, columns, _ = merged.shape
    kernel = kernel_of(shape, linear)
    flat = merged.reshape(groups * rows, columns, *(size - 2 * rings for size in kernel))
    return flat.movedim((0, 1), (linear.row_axis, linear.column_axis)).contiguous()


def kernel_of(shape: Sequence[int], linear: LinearMap) -> tuple[int, ...]:
    """The kernel's part of a weight's shape."""
    return tuple(size for axis, size in enumerate(shape) if axis not in (linear.row_axis, linear.column_axis))
