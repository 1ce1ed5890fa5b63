"""How the columns of a layer add up when classes of channels are merged, and what cancels. In float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from canon.graph import LinearMap


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
class Sums:
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

    def patch(self, columns: Tensor, device: torch.device) -> Patch:
        """What is to be done to some of the columns."""
        scale = self.scale[columns]
        number = torch.full((self.after,), -1, dtype=torch.int64)
        number[self.targets] = torch.arange(self.targets.numel())
        number = number[columns]
        empty, summed = torch.nonzero(scale == 0).flatten(), torch.nonzero(number >= 0).flatten()
        scaled = torch.nonzero((scale != 0) & (scale != 1)).flatten()
        parts = (empty, scaled, scale[scaled], summed, number[summed])
        return Patch(*(part.to(device) for part in parts))


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
    return Sums(lead, scale, targets, members, number[target[member]], factor[members])


class Adder:
    """Adds up the columns of each class; a sum that is small against what was added up is zero."""

    def __init__(self, sums: Sums, count: int, spread: Tensor, floor: float, smallest: float) -> None:
        self._sums, self._count = sums, count
        self._bounds = _limits(sums, spread, floor, smallest)
        self.added = torch.zeros(count, dtype=torch.bool)
        """Rows whose sums are known."""

        self._ready = False

    def _prepare(self, piece: Tensor) -> None:
        """Make room where the weights are."""
        device, sums = piece.device, self._sums
        self.members, self.local = sums.members.to(device), sums.local.to(device)
        self.factor = sums.factor.to(device)[:, None]
        self.limit, self.rounded = (bound.to(device) for bound in self._bounds)
        self.totals = piece.new_empty(self._count, sums.targets.numel(), piece.shape[2])
        self.size = torch.zeros(self.totals.shape[1:], dtype=torch.float64, device=device)
        """`sums x kernel`: how much there is of each in the rows that were measured."""

        self.largest = torch.zeros(sums.targets.numel(), dtype=torch.float64, device=device)
        self._ready = True

    def add(self, piece: Tensor, rows: Tensor) -> Tensor:
        """The sums of some rows, given with their numbers."""
        if not self._ready:
            self._prepare(piece)
        terms = piece.index_select(1, self.members).double() * self.factor
        total = terms.new_zeros(terms.shape[0], self.limit.numel(), terms.shape[2]).index_add_(1, self.local, terms)
        mass = terms.new_zeros(total.shape[:2]).index_add_(1, self.local, torch.linalg.vector_norm(terms, dim=-1))
        size = torch.linalg.vector_norm(total, dim=-1)
        share = size / torch.where(mass > 0, mass, 1.0)
        zero = (share <= self.limit) | (size <= self.rounded)
        self.largest = torch.maximum(self.largest, torch.where(zero, share, 0.0).amax(dim=0))
        total = total.masked_fill_(zero[..., None], 0).to(self.totals.dtype)
        self.totals.index_copy_(0, rows.to(total.device), total)
        self.added[rows] = True
        return total

    def measure(self, total: Tensor, asked: Tensor | None) -> None:
        """Count the sums of some rows in `size`; `asked` says of which columns, `rows x columns`."""
        size = total.abs()
        if asked is not None:
            size = size * asked[:, self._sums.targets.to(asked.device), None]
        self.size += size.sum(dim=0, dtype=torch.float64)

    def forget_size(self) -> None:
        """Begin again to measure."""
        if self._ready:
            self.size.zero_()

    def ratio(self, columns: int) -> Tensor:
        """Per column: the largest ratio of a sum that was taken for zero to what was added up in it."""
        ratio = torch.zeros(columns, dtype=torch.float64)
        if self._ready:
            ratio[self._sums.targets] = self.largest.cpu()
        return ratio


def _limits(sums: Sums, spread: Tensor, floor: float, smallest: float) -> tuple[Tensor, Tensor]:
    """Per sum: what is zero relative to what was added up, and what is zero however little was added up."""
    widest = torch.zeros(sums.targets.numel(), dtype=torch.float64)
    rounded = torch.zeros_like(widest)
    if sums.targets.numel():
        widest.scatter_reduce_(0, sums.local, spread[sums.members], "amax")
        rounded.index_add_(0, sums.local, sums.factor.abs())
    return (8 * widest).clamp(min=floor, max=0.02), smallest * rounded
