"""Add up columns of one class, and see what cancels.

A layer's rows are read as they turn out to be alive, each once, some at a time, and only what is decided on is kept:
how much there is in every column, and the sums. The merged weight is written when it is known what remains of it, so
that nothing of the attacked layer's size ever is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from canon._memory import Empty, separate
from canon.describe import Array
from canon.describe.arrays import middle
from canon.graph import LinearMap
from canon.recovery.sums import Adder
from canon.rewrite.axes import by_row, kernel_of, side_by_side
from canon.rewrite.kernels import Ends
from canon.rewrite.tensors import Rewrites, column_transform, row_transform
from canon.rewrite.weights import pick_rows, room_for, write_weight
from canon.transforms import ChannelTransform


class Merged:
    """A layer over kept rows and classes of columns."""

    def __init__(
        self,
        weight: Callable[[], Tensor],
        shape: Sequence[int],
        linear: LinearMap,
        merges: Rewrites,
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
        self._weight, self._linear, self.groups = weight, linear, linear.groups
        self._kept, self._classes = row_transform(linear, merges), column_transform(linear, merges)
        count = shape[linear.row_axis] if self._kept is None else self._kept.after
        before = shape[linear.column_axis] * linear.groups
        self.rows = count // linear.groups
        self.columns = (before if self._classes is None else self._classes.after) // linear.groups
        self._kernel = kernel_of(shape, linear)
        self._seen: Tensor | None = None
        self._size: Tensor | None = None
        self._adder: Adder | None = None
        if self._classes is not None and self._classes.sums.targets.numel():
            numbers = torch.Size(self._kernel).numel()
            self._adder = Adder(self._classes, self.rows, spread, floor, smallest * numbers**0.5)

    def read(self, live: Tensor) -> Tensor:
        """Columns that some of the rows read, `groups x columns`; `live` is `groups x rows`."""
        seen = self._seen
        if seen is not None and bool((seen & ~live).any()):
            seen, self._size = None, None  # fewer rows than before: begin again
        fresh = live if seen is None else live & ~seen
        if bool(fresh.any()):
            self._look(fresh)
        self._seen = live.clone()
        return self._found().view(self.groups, self.columns)

    @property
    def cancelled(self) -> Array | None:
        """Per column: the largest ratio of a sum that was taken for zero to what was added up; None: nothing was."""
        return None if self._adder is None else self._adder.ratio(self.groups * self.columns)

    @property
    def weight(self) -> Tensor:
        """`groups x rows/groups x columns/groups x kernel`: all of it."""
        return by_row(self.write(), self._linear).view(self.groups, self.rows, self.columns, -1)

    def marks(self) -> Tensor:
        """`groups x rows/groups x columns/groups`: which row reads which column."""
        return (self.weight != 0).any(dim=-1)

    def used(self, rows: Tensor, columns: Tensor | None) -> Tensor | None:
        """Which places of their kernels some rows use, given as for `write`; None: nobody has looked at them all."""
        if self.groups > 1 or self._size is None or self._seen is None or not bool(self._seen[0, rows].all()):
            return None
        if self._classes is None:
            size = self._size if columns is None else self._size[columns.to(self._size.device)]
        else:
            sums, wanted = self._classes.sums, torch.arange(self.columns) if columns is None else columns
            summed = torch.zeros(self.columns, dtype=torch.bool).index_fill_(0, sums.targets, True)
            alone = wanted[~summed[wanted]]
            size = self._size[sums.lead[alone].to(self._size.device)]
            if self._adder is not None:
                size = torch.cat([size, self._adder.size[self._adder.of_columns(columns)].to(size.dtype)])
        return (size != 0).any(dim=0).cpu().view(self._kernel)

    def write(
        self,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
        empty: Empty = separate,
        ends: Sequence[Ends] = (),
    ) -> Tensor:
        """The merged weight, or some of it.

        Args:
            rows: Numbers of kept rows, over all groups, in order; None: all.
            columns: Numbers of columns after the merge, over all groups, in order; None: all.
            empty: Where to write it.
            ends: What goes of the kernels, of a layer without groups.
        """
        linear, weight = self._linear, self._weight()
        if self.groups > 1 and (rows is not None or columns is not None):
            return write_weight(self.write(), linear, *(_selection(*p) for p in (
                (rows, self.groups * self.rows), (columns, self.groups * self.columns))), empty=empty)  # fmt: skip
        kept, classes, adder, totals = self._kept, self._classes, self._adder, None
        if rows is not None:
            kept = _selection(rows, self.rows) if kept is None else kept.taking(rows)
        if columns is not None:
            classes = _selection(columns, self.columns) if classes is None else classes.taking(columns)
        if adder is not None:
            wanted = torch.arange(self.rows) if rows is None else rows
            self._add(wanted[~adder.added[wanted]], self._source(weight))
            chosen = adder.of_columns(columns)

            def totals(part: Tensor) -> Tensor:
                return adder.totals.index_select(0, wanted[part].to(chosen.device)).index_select(1, chosen)

        return write_weight(weight, linear, kept, classes, ends=ends, totals=totals, empty=empty)

    def _source(self, weight: Tensor) -> Tensor:
        """`rows x columns x kernel`; with groups, their kept rows lie side by side."""
        source = by_row(weight, self._linear)
        if self.groups > 1 and self._kept is not None:
            source = self._kept.apply(source, 0)
        return side_by_side(source, self.groups)

    def _rows(self, source: Tensor, rows: Tensor, room: Tensor) -> Tensor:
        """Kept rows by number; those of groups are chosen already."""
        chosen = rows if self._kept is None or self.groups > 1 else self._kept.rows[rows]
        return pick_rows(source, chosen, room)

    def _add(self, rows: Tensor, source: Tensor) -> None:
        """Add up the columns of rows that nobody has looked at."""
        assert self._adder is not None, "callers check"
        room, parts = room_for(rows, source)
        for part in parts:
            self._adder.add(self._rows(source, part, room), part)
            self._adder.settle()

    def _look(self, fresh: Tensor) -> None:
        """Go through rows: how much there is in every column, and the sums."""
        source = self._source(self._weight())
        wide = torch.promote_types(source.dtype, torch.float32)
        if self._size is None:
            self._size = torch.zeros(source.shape[1:], dtype=wide, device=source.device)
            if self._adder is not None:
                self._adder.measure_again()
        numbers = torch.nonzero(fresh.any(dim=0)).flatten()
        room, pieces = room_for(numbers, source)
        if self._adder is not None:
            self._adder.prepare(source)  # takes memory that stays: before the pieces, whose memory is given back
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
        found: Array = self._size.amax(dim=1).cpu().numpy() != 0
        if self._classes is not None:
            sums = self._classes.sums
            found = found[sums.lead.numpy()]
            found[sums.empty.numpy()] = False
            if sums.scale is not None:
                found &= sums.scale.numpy() != 0
            if self._adder is not None:
                norms = self._size.sum(dim=1).cpu().numpy()
                usual = middle(norms) / max(1.0, self.rows * self._size.shape[1]) ** 0.5
                found[sums.targets.numpy()] = self._adder.present(usual)
        return torch.from_numpy(found)


def _selection(chosen: Tensor | None, count: int) -> ChannelTransform | None:
    return None if chosen is None else ChannelTransform.selection(chosen, count)
