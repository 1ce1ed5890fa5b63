"""Sums of columns when classes of channels are merged, and what cancels in them. In float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from canon.describe import Array
from canon.transforms import ChannelTransform

WAITING = 1 << 17
"""Numbers that may wait to be settled: few steps for many rows, and little memory."""

DIGITS = 3e-5
"""A column that cancels to so many digits, and is small then, has cancelled. Columns that are split into parts a
thousand times as loud leave more."""

LITTLE = 1e-3
"""Small: this part of an ordinary column."""


class Adder:
    """Adds up the columns of each class; a sum that is small against what was added up is zero."""

    def __init__(self, classes: ChannelTransform, count: int, spread: Array, floor: float, smallest: float) -> None:
        """Say what is added up.

        Args:
            classes: How columns are merged.
            count: Rows.
            spread: Per column before: how far the channel is from what it is taken for.
            floor: A sum this small against what was added up is zero whatever the spread.
            smallest: How far off a number may be however small it is.
        """
        self._sums, self._after, self._count = classes.sums, classes.after, count
        starts = (self._sums.sizes.cumsum(0) - self._sums.sizes).numpy()
        widest = np.maximum.reduceat(spread[self._sums.members.numpy()], starts)
        self._limit = torch.from_numpy(np.minimum(np.maximum(8 * widest, floor), 0.02))
        self._rounded = smallest * torch.from_numpy(np.add.reduceat(np.abs(self._sums.factors.numpy()), starts))
        self.added = torch.zeros(count, dtype=torch.bool)
        """Rows whose sums are known."""

        self._ready = False
        self._open: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._usual: Tensor | None = None

    def prepare(self, piece: Tensor) -> None:
        """Make room where the weights are."""
        if self._ready:
            return
        device, sums = piece.device, self._sums
        self._parts, starts = [], sums.sizes.cumsum(0) - sums.sizes
        for size in torch.unique(sums.sizes).tolist():  # targets of as many members together
            numbers = torch.nonzero(sums.sizes == size).flatten()
            members = starts[numbers] + torch.arange(size)[:, None]
            parts = (numbers, sums.members[members].flatten(), sums.factors[members][..., None])
            self._parts.append(tuple(part.to(device) for part in parts))
        self._limit, self._rounded = self._limit.to(device), self._rounded.to(device)
        self.totals = piece.new_empty(self._count, sums.targets.numel(), piece.shape[2])
        self.size = torch.zeros(self.totals.shape[1:], dtype=torch.float64, device=device)
        """`sums x kernel`: how much there is of each in the rows that were measured."""

        self.largest, self._left, self._mass = (torch.zeros_like(self._limit) for _ in range(3))
        self._ready = True

    def add(self, piece: Tensor, rows: Tensor) -> None:
        """Add up the columns of some rows, given with their numbers. What that makes is decided by `settle`."""
        self.prepare(piece)
        wide = torch.promote_types(piece.dtype, torch.float32)
        length = torch.linalg.vector_norm(piece.flatten(1), dim=1, dtype=wide).double()
        self._open.append((rows, *self._added(piece), length))

    @property
    def full(self) -> bool:
        """Whether so much waits to be settled that it should not grow."""
        return sum(total.numel() for _, total, _, _ in self._open) >= WAITING

    def settle(self, fresh: Tensor | None = None) -> None:
        """Decide on the rows that were added since the last time: where their sums cancel, they are zero.

        Args:
            fresh: Rows to count in `size`, `groups x rows`; None: do not count them.
        """
        waiting, self._open = self._open, []
        rows, total, mass, length = waiting[0] if len(waiting) == 1 else map(torch.cat, zip(*waiting, strict=True))
        del waiting
        if self._usual is None:
            self._usual = (mass / length.clamp(min=1e-300)[:, None]).median(dim=0).values
        size = _lengths(total)
        # Two numbers that happen to be small leave a last digit of what they were written with.
        yardstick = torch.maximum(mass, length[:, None] * self._usual)
        share = size / torch.where(yardstick > 0, yardstick, 1.0)
        zero = (share <= self._limit) | (size <= self._rounded)
        self.largest = torch.maximum(self.largest, torch.where(zero, share, 0.0).amax(dim=0))
        total = total.masked_fill_(zero[..., None], 0).to(self.totals.dtype)
        self.totals.index_copy_(0, rows.to(total.device), total)
        self.added[rows] = True
        if fresh is not None:
            if len(fresh) > 1:  # of groups: which rows count depends on the column
                asked = fresh[:, rows].T.repeat_interleave(self._after // len(fresh), dim=1)
                asked = asked[:, self._sums.targets].to(total.device)
                total, size, mass = total * asked[..., None], size * asked, mass * asked
            self.size += total.abs().sum(dim=0, dtype=torch.float64)
            self._left += size.square().sum(dim=0)
            self._mass += mass.square().sum(dim=0)

    def _added(self, piece: Tensor) -> tuple[Tensor, Tensor]:
        """`rows x sums x kernel`, and the sum of the norms in each: targets of as many members together."""
        found = []
        for numbers, members, factor in self._parts:
            picked = piece.index_select(1, members).view(len(piece), *factor.shape[:2], -1)
            terms = picked * factor  # float64, as the factors are
            found.append((numbers, terms.sum(dim=1), _lengths(terms).sum(dim=1)))
        if len(found) == 1:
            return found[0][1], found[0][2]
        total = found[0][1].new_empty(len(piece), *self.size.shape)
        mass = total.new_empty(total.shape[:2])
        for numbers, summed, norms in found:
            total.index_copy_(1, numbers, summed)
            mass.index_copy_(1, numbers, norms)
        return total, mass

    def of_columns(self, columns: Tensor | None) -> Tensor:
        """The numbers of the sums that stand in some columns after the merge; None: in all of them."""
        targets = self._sums.targets
        if columns is None:
            return torch.arange(targets.numel(), device=self.totals.device)
        chosen = torch.zeros(self._after, dtype=torch.bool).index_fill_(0, columns, True)
        return torch.nonzero(chosen[targets]).flatten().to(self.totals.device)

    def present(self, usual: float) -> Array:
        """Per sum: whether there is anything in the column, and the whole of it has not cancelled, but for noise.

        Where single entries are small by chance, noise does not cancel against them; it does against the column. A
        column that is all noise is small against the others as well.

        Args:
            usual: Norm of an ordinary column.
        """
        left, mass = self._left.sqrt(), self._mass.sqrt()
        noise = (left <= DIGITS * mass) & (left <= LITTLE * usual)
        gone = noise | (left <= self._limit * mass)
        return np.asarray(((self.size.amax(dim=1) != 0) & ~gone).cpu().numpy())

    def measure_again(self) -> None:
        """Begin again to measure."""
        if self._ready:
            for count in (self.size, self._left, self._mass):
                count.zero_()

    def ratio(self, columns: int) -> Array:
        """Per column: the largest ratio of a sum that was taken for zero to what was added up in it."""
        ratio = np.zeros(columns)
        if self._ready:
            ratio[self._sums.targets.numpy()] = self.largest.cpu().numpy()
        return ratio


def _lengths(vectors: Tensor) -> Tensor:
    """Norms along the last axis, which is short: torch's own take many times as long there."""
    if vectors.shape[-1] == 1:
        return vectors[..., 0].abs()
    return (vectors.square() @ vectors.new_ones(vectors.shape[-1])).sqrt()
