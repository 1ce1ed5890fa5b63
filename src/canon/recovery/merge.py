"""Add up columns of one class, and see what cancels. Pure arithmetic on weights, in float64.

A layer's rows are read as they turn out to be alive, each once, some at a time, and only what is decided on is kept:
how much there is in every column, and the sums. The merged weight is written when it is known what remains of it, so
that nothing of the attacked layer's size ever is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from canon._memory import Empty, scratch, separate
from canon.describe import Array
from canon.graph import LinearMap
from canon.recovery.sums import Adder, Merges, sums_of

PIECE = 1 << 19
"""Weights worked on at a time on the host: what a core's cache holds."""

PIECE_ON_DEVICE = 1 << 26
"""The same on a device, where every step costs a launch."""


class Merged:
    """A layer over kept rows and classes of columns."""

    def __init__(
        self,
        weight: Callable[[], Tensor],
        shape: Sequence[int],
        linear: LinearMap,
        merges: Merges,
        spread: Array,
        floor: float,
        smallest: float = 0.0,
    ) -> None:
        """Say what is to be merged; nothing is read yet.

        Args:
            weight: Gives the layer's weight; asked whenever rows are read, so that nobody has to keep it.
            shape: Of the weight.
            linear: The layer.
            merges: What happens to spaces.
            spread: Per column before: how far the channel is from the leader of its class.
            floor: A sum this small against what was added up is zero whatever the spread.
            smallest: How far off a stored number may be however small it is; float16 knows nothing below 6e-8.
        """
        self._weight, self._linear = weight, linear
        kernel = kernel_of(shape, linear)
        self._index = kept_rows(linear, merges)
        count = shape[linear.row_axis] if self._index is None else self._index.numel()
        before = shape[linear.column_axis] * linear.groups
        self._sums = sums_of(linear, merges) if any(s.space in merges for s in linear.columns or ()) else None
        self.groups, self.rows = linear.groups, count // linear.groups
        self.columns = (before if self._sums is None else self._sums.after) // linear.groups
        cropping = linear.groups == 1 and linear.cropping and min(linear.cropping) > 0
        self._rim = _rim(kernel) if cropping else None
        self._seen: Tensor | None = None
        self._size: Tensor | None = None
        self._adder: Adder | None = None
        if self._sums is not None and self._sums.targets.size:
            entries = torch.Size(kernel).numel()
            self._adder = Adder(self._sums, self.rows, spread, floor, smallest * entries**0.5)

    def read(self, live: Tensor) -> Tensor:
        """Columns that some of the rows read, `groups x columns`; `live` is `groups x rows`."""
        self.see(live)
        return self._found().view(self.groups, self.columns)

    def see(self, live: Tensor) -> None:
        """Look at rows, at those that were seen before no more; `live` is `groups x rows`."""
        seen = self._seen
        if seen is not None and bool((seen & ~live).any()):
            seen, self._size = None, None  # fewer rows than before: begin again
        fresh = live if seen is None else live & ~seen
        if bool(fresh.any()):
            self._look(fresh)
        self._seen = live.clone()

    def hollow(self, columns: Tensor) -> bool:
        """Whether the rows that were read hold nothing on the outermost ring of their kernels, in these columns."""
        if self._rim is None or self._size is None:
            return False
        rim = self._rim
        return not self._of_columns(lambda size: size[:, rim])[columns.numpy()].any()

    @property
    def cancelled(self) -> Array | None:
        """Per column: the largest ratio of a sum that was taken for zero to what was added up; None: nothing was."""
        return None if self._adder is None else self._adder.ratio(self.groups * self.columns)

    @property
    def weight(self) -> Tensor:
        """`groups x rows/groups x columns/groups x kernel`: all of it."""
        taken = self.take(torch.arange(self.rows), torch.arange(self.groups * self.columns))
        return taken.view(self.rows, self.groups, self.columns, -1).transpose(0, 1)

    def marks(self) -> Tensor:
        """`groups x rows/groups x columns/groups`: which row reads which column."""
        return (self.weight != 0).any(dim=-1)

    def take(
        self, rows: Tensor, columns: Tensor, crop: tuple[int, ...] | None = None, empty: Empty = separate
    ) -> Tensor:
        """Some rows and columns: `rows x columns x kernel`, the groups side by side.

        Args:
            rows: Numbers of kept rows.
            columns: Numbers of columns after the merge.
            crop: The kernel's shape, to leave its outermost ring out.
            empty: Where to write it.
        """
        sums, adder = self._sums, self._adder
        source = self._source()
        device, kernel = source.device, source.shape[2]
        if adder is not None and not bool(adder.added[rows].all()):
            for part in _pieces(rows[~adder.added[rows]], source):
                adder.add(self._rows(source, part), part)
                adder.settle()
        column = columns if sums is None else torch.from_numpy(sums.lead[columns.numpy()])
        inside = None if crop is None else _inside(crop)
        if inside is not None:
            column = (column[:, None] * kernel + inside).flatten()
        patch = None if sums is None else sums.patch(columns.numpy(), device)
        totals = None if adder is None else adder.totals
        if totals is not None and inside is not None:
            totals = totals.index_select(2, inside.to(device))
        result = empty((rows.numel(), columns.numel(), kernel if inside is None else inside.numel()), source)
        column, start = column.to(device), 0
        room, parts = _room(rows, source)
        for part in parts:
            piece, written = self._rows(source, part, room), result[start : start + part.numel()]
            if inside is None:
                torch.index_select(piece, 1, column, out=written)
            else:
                torch.index_select(piece.flatten(1), 1, column, out=written.flatten(1))
            if patch is not None:
                patch.apply(written, totals, part.to(device))
            start += part.numel()
        return result

    def _source(self) -> Tensor:
        return _side_by_side(self._weight(), self._linear, self._index)

    def _rows(self, source: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Kept rows by number; those of groups are chosen before they are put side by side."""
        origin = rows if self._index is None or self.groups > 1 else self._index[rows]
        first, count = int(origin[0]), origin.numel()
        if int(origin[-1]) - first + 1 == count and torch.equal(origin, torch.arange(first, first + count)):
            return source[first : first + count]
        if out is None:
            return source.index_select(0, origin.to(source.device))
        return torch.index_select(source, 0, origin.to(source.device), out=out[:count])

    def _look(self, fresh: Tensor) -> None:
        """Go through rows: how much there is in every column, and the sums."""
        source = self._source()
        wide = torch.promote_types(source.dtype, torch.float32)
        if self._size is None:
            self._size = torch.zeros(source.shape[1:], dtype=wide, device=source.device)
            if self._adder is not None:
                self._adder.forget_size()
        numbers = torch.nonzero(fresh.any(dim=0)).flatten()
        room, pieces = _room(numbers, source)
        if self._adder is not None:
            self._adder.prepare(source)  # before what is given back: between, it would keep memory in pieces
        for part in pieces:
            piece = self._rows(source, part, room)
            if self._adder is not None:
                self._adder.add(piece, part)
                if self._adder.full or part is pieces[-1]:
                    self._adder.settle(fresh)
            size = torch.abs(piece, out=room[: part.numel()])
            if self.groups > 1:
                size.view(part.numel(), self.groups, -1).mul_(fresh[:, part].T[..., None].to(size.device))
            size = size.flatten(1).to(wide)
            self._size += (size.new_ones(part.numel()) @ size).view(self._size.shape)

    def _found(self) -> Tensor:
        """Which columns hold anything in the rows that were read."""
        if self._size is None:
            return torch.zeros(self.groups * self.columns, dtype=torch.bool)
        found = self._of_columns(lambda size: size)
        if self._adder is not None and self._sums is not None:
            norms = self._size.sum(dim=1).cpu().numpy()
            usual = float(np.median(norms)) / max(1.0, self.rows * self._size.shape[1]) ** 0.5
            found[self._sums.targets] &= ~self._adder.faint(usual)
        return torch.from_numpy(found)

    def _of_columns(self, part: Callable[[Tensor], Tensor]) -> Array:
        """Per column: whether there is anything in this part of its kernels."""
        assert self._size is not None, "callers check"
        found: Array = part(self._size).amax(dim=1).cpu().numpy() != 0
        if self._sums is not None:
            found = found[self._sums.lead] & (self._sums.scale != 0)
            if self._adder is not None:
                found[self._sums.targets] = part(self._adder.size).amax(dim=1).cpu().numpy() != 0
        return found


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


@lru_cache
def _rim(kernel: tuple[int, ...]) -> Tensor | None:
    """Which places of a flattened kernel are on its outermost ring; None where that is all of it."""
    if min(kernel, default=0) < 3:
        return None
    rim = torch.ones(torch.Size(kernel).numel(), dtype=torch.bool)
    rim[_inside(kernel)] = False
    return rim


def _pieces(rows: Tensor, source: Tensor) -> tuple[Tensor, ...]:
    """Numbers of rows to work on at a time."""
    piece = PIECE if source.device.type == "cpu" else PIECE_ON_DEVICE
    step = max(1, piece // max(1, source.shape[1:].numel()))
    return rows.split(step) if rows.numel() else ()


def _room(rows: Tensor, source: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Numbers of rows to work on at a time, and room for the largest of these pieces."""
    parts = _pieces(rows, source)
    count = parts[0].numel() if parts else 0
    return scratch((count, *source.shape[1:]), source.dtype, source.device), parts


@lru_cache
def _inside(kernel: tuple[int, ...]) -> Tensor:
    """The places of a flattened kernel that are not on its outermost ring."""
    places = torch.arange(torch.Size(kernel).numel()).view(kernel)
    return places[(slice(1, -1),) * len(kernel)].flatten()


def unfold(merged: Tensor, shape: Sequence[int], linear: LinearMap, rings: int = 0) -> Tensor:
    """Back from `groups x rows x columns x kernel` to the layout of a weight of this shape, less some rings."""
    groups, rows, columns, _ = merged.shape
    kernel = kernel_of(shape, linear)
    flat = merged.reshape(groups * rows, columns, *(size - 2 * rings for size in kernel))
    return flat.movedim((0, 1), (linear.row_axis, linear.column_axis)).contiguous()


def kernel_of(shape: Sequence[int], linear: LinearMap) -> tuple[int, ...]:
    """The kernel's part of a weight's shape."""
    return tuple(size for axis, size in enumerate(shape) if axis not in (linear.row_axis, linear.column_axis))
