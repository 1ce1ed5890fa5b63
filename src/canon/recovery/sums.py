"""How the columns of a layer add up when classes of channels are merged, and what cancels. In float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from canon.describe import Array
from canon.graph import LinearMap
from canon.recovery.tolerance import FAINT


@dataclass(frozen=True, eq=False)
class SpaceMerge:
    """What becomes of a space's channels when each class is merged into one."""

    keep: Tensor
    """The channels that stand for their classes, in order."""

    into: Tensor
    """For every channel its place among them, negative for one that is zero."""

    factors: Mapping[int, Tensor] = field(default_factory=dict)
    """By tap: channel = factor x what it is merged into; 1 where a tap is not listed."""


WAITING = 1 << 17
"""Numbers that may wait to be settled: few steps for many rows, and little memory."""

DIGITS = 3e-5
"""A column that cancels to so many digits, and is small then, has cancelled. Columns that are split into parts a
thousand times as loud leave more."""

LITTLE = 1e-3
"""Small: this part of an ordinary column."""

Merges = Mapping[int, SpaceMerge]
"""By space id; a space that is not listed stays."""


@dataclass(frozen=True, eq=False)
class Sums:
    """How columns add up."""

    lead: Array
    """For every column after a column before: the first of those that are added up."""

    scale: Array
    """For every column after that is one column: its factor. 0 where nothing is added up, 1 for sums of several."""

    targets: Array
    """Columns after that are sums of several."""

    sizes: Array
    """For every target how many columns are added up in it."""

    members: Array
    """Columns before that are added up, those of the first target first."""

    factor: Array
    """For every member its factor."""

    @property
    def after(self) -> int:
        """Columns after."""
        return int(self.lead.size)

    def alike(self) -> Iterator[tuple[Array, Array]]:
        """Targets of as many members each, by number, and their members, by number: `size x targets`."""
        starts = np.cumsum(self.sizes) - self.sizes
        for size in np.unique(self.sizes):
            numbers = np.flatnonzero(self.sizes == size)
            yield numbers, starts[numbers] + np.arange(size)[:, None]

    def patch(self, columns: Array, device: torch.device) -> Patch:
        """What is to be done to some of the columns."""
        scale = self.scale[columns]
        number = np.full(self.after, -1)
        number[self.targets] = np.arange(self.targets.size)
        number = number[columns]
        empty, summed = np.flatnonzero(scale == 0), np.flatnonzero(number >= 0)
        scaled = np.flatnonzero((scale != 0) & (scale != 1))
        parts = (empty, scaled, scale[scaled], summed, number[summed])
        return Patch(*(torch.from_numpy(part).to(device) for part in parts))


@dataclass(frozen=True, eq=False)
class Patch:
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


def sums_of(linear: LinearMap, merges: Merges) -> Sums:
    """How the columns of a layer add up, one stretch per segment."""
    places, factors, after = [], [], 0
    for segment in linear.columns or ():
        merge, repeat = merges.get(segment.space), segment.repeat
        width = segment.length // repeat
        place, kept, known = np.arange(width), width, None
        if merge is not None:
            place, kept, known = merge.into.numpy(), merge.keep.numel(), merge.factors.get(segment.tap)
        factor = np.ones(width) if known is None else known.numpy()
        if repeat > 1:
            place = np.where(place[:, None] < 0, -1, place[:, None] * repeat + np.arange(repeat)).ravel()
            factor = factor.repeat(repeat)
        places.append(np.where(place < 0, -1, place + after))
        factors.append(factor)
        after += kept * repeat
    place, factor = np.concatenate(places), np.concatenate(factors)
    used = np.flatnonzero(place >= 0)
    order = used[np.argsort(place[used], kind="stable")]
    count = np.bincount(place[used], minlength=after)
    several = count > 1
    start = np.minimum(np.cumsum(count) - count, max(0, order.size - 1))
    lead = order[start] if order.size else np.zeros(after, dtype=np.int64)
    members = order[several[place[order]]]
    scale = np.where(count == 1, factor[lead], several)
    return Sums(lead, scale, np.flatnonzero(several), count[several], members, factor[members])


class Adder:
    """Adds up the columns of each class; a sum that is small against what was added up is zero."""

    def __init__(self, sums: Sums, count: int, spread: Array, floor: float, smallest: float) -> None:
        self._sums, self._count = sums, count
        self._bounds = _limits(sums, spread, floor, smallest)
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
        self._parts, self._columns = [], piece.shape[1]
        for numbers, members in sums.alike():
            parts = (numbers, sums.members[members].ravel(), sums.factor[members][..., None])
            self._parts.append(tuple(torch.from_numpy(part).to(device) for part in parts))
        self.limit, self.rounded = (torch.from_numpy(bound).to(device) for bound in self._bounds)
        self.totals = piece.new_empty(self._count, sums.targets.size, piece.shape[2])
        self.size = torch.zeros(self.totals.shape[1:], dtype=torch.float64, device=device)
        """`sums x kernel`: how much there is of each in the rows that were measured."""

        self.largest, self._left, self._mass = (torch.zeros_like(self.limit) for _ in range(3))
        self._ready = True

    def add(self, piece: Tensor, rows: Tensor) -> None:
        """Add up the columns of some rows, given with their numbers. What that makes is decided by `settle`."""
        self.prepare(piece)
        length = torch.linalg.vector_norm(piece.flatten(1), dim=1, dtype=torch.float64)
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
        size = torch.linalg.vector_norm(total, dim=-1)
        # Two numbers that happen to be small leave a last digit of what they were written with.
        yardstick = torch.maximum(mass, length[:, None] * self._usual)
        share = size / torch.where(yardstick > 0, yardstick, 1.0)
        zero = (share <= self.limit) | (size <= self.rounded) | self._hardly_read(size, length)
        self.largest = torch.maximum(self.largest, torch.where(zero, share, 0.0).amax(dim=0))
        total = total.masked_fill_(zero[..., None], 0).to(self.totals.dtype)
        self.totals.index_copy_(0, rows.to(total.device), total)
        self.added[rows] = True
        if fresh is not None:
            if len(fresh) > 1:  # of groups: which rows count depends on the column
                asked = fresh[:, rows].T.repeat_interleave(self._sums.after // len(fresh), dim=1)
                asked = asked[:, torch.from_numpy(self._sums.targets)].to(total.device)
                total, size, mass = total * asked[..., None], size * asked, mass * asked
            self.size += total.abs().sum(dim=0, dtype=torch.float64)
            self._left += size.square().sum(dim=0)
            self._mass += mass.square().sum(dim=0)

    def _hardly_read(self, size: Tensor, length: Tensor) -> Tensor:
        """Sums of nothing but noise, where most rows hardly read any of the columns: noises add up by their squares."""
        count = torch.from_numpy(self._sums.sizes).to(size.device)
        ordinary = length / self._columns**0.5
        assert self._usual is not None, "callers measure it"
        unread = self._usual * self._columns**0.5 <= FAINT * count
        return torch.logical_and(unread, size <= FAINT * count.sqrt() * ordinary[:, None])

    def _added(self, piece: Tensor) -> tuple[Tensor, Tensor]:
        """`rows x sums x kernel`, and the sum of the norms in each: targets of as many members together."""
        found = []
        for numbers, members, factor in self._parts:
            picked = piece.index_select(1, members).view(len(piece), *factor.shape[:2], -1)
            terms = picked * factor  # float64, as the factors are
            found.append((numbers, terms.sum(dim=1), torch.linalg.vector_norm(terms, dim=-1).sum(dim=1)))
        if len(found) == 1:
            return found[0][1], found[0][2]
        total = found[0][1].new_empty(len(piece), *self.size.shape)
        mass = total.new_empty(total.shape[:2])
        for numbers, summed, norms in found:
            total.index_copy_(1, numbers, summed)
            mass.index_copy_(1, numbers, norms)
        return total, mass

    def faint(self, usual: float) -> Array:
        """Per sum: whether the whole column has cancelled, but for noise.

        Where single entries are small by chance, noise does not cancel against them; it does against the column. A
        column that is all noise is small against the others as well.

        Args:
            usual: Norm of an ordinary column.
        """
        left, mass = self._left.sqrt(), self._mass.sqrt()
        noise = (left <= DIGITS * mass) & (left <= LITTLE * usual)
        return np.asarray((noise | (left <= self.limit * mass)).cpu().numpy())

    def forget_size(self) -> None:
        """Begin again to measure."""
        if self._ready:
            for count in (self.size, self._left, self._mass):
                count.zero_()

    def ratio(self, columns: int) -> Array:
        """Per column: the largest ratio of a sum that was taken for zero to what was added up in it."""
        ratio = np.zeros(columns)
        if self._ready:
            ratio[self._sums.targets] = self.largest.cpu().numpy()
        return ratio


def _limits(sums: Sums, spread: Array, floor: float, smallest: float) -> tuple[Array, Array]:
    """Per sum: what is zero relative to what was added up, and what is zero however little was added up."""
    starts = np.cumsum(sums.sizes) - sums.sizes
    widest = np.maximum.reduceat(spread[sums.members], starts)
    rounded = np.add.reduceat(np.abs(sums.factor), starts)
    return np.minimum(np.maximum(8 * widest, floor), 0.02), smallest * rounded
