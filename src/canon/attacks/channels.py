"""Channels: what every channel of a space is, while primitives add to them. Symbols only; no weight is touched.

A space is cut into `G` blocks of equal width (one block unless a grouped convolution reads or makes it), and all
tensors here have the shape `[G, width of a block]`. Everything a primitive does is said in five words: `append`
dummies, `cancel` a group of them, `split` a channel, `disperse` channels, `reorder`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, final

import torch
from torch import Tensor

from canon.attacks.units import Units
from canon.errors import AttackError


@final
class Kind(IntEnum):
    """What a channel is after an attack."""

    LIVE = 0
    """An original channel, a copy of one, or one of several that together give one."""

    ZERO_IN = 1
    """Null at every consumer, which may read it with any weight."""

    ZERO_OUT = 2
    """Read by no live channel; it may hold anything."""

    CLIQUE = 3
    """Shares its incoming filter with the other members; live consumers' weights on them sum to zero."""

    TINY = 4
    """Read by live channels so weakly that it does not matter; it may hold anything."""

    NOISY_CLIQUE = 5
    """As a clique, but the weights of live consumers sum to a little noise."""

    ODD = 6
    """One of a group with different filters, whose live consumers' weights cancel for all of them together."""

    DEAD_RANGE = 7
    """Never switched on by any input that can reach it; null at every consumer, which may read it with any weight."""

    DEAD_DATA = 8
    """Not switched on by any input that was tried; consumers may read it with any weight."""


CLIQUES: Final = (Kind.CLIQUE, Kind.NOISY_CLIQUE)
"""What one call appends to a block as one of these is one clique."""

SILENT: Final = (Kind.ZERO_IN, Kind.DEAD_RANGE, Kind.DEAD_DATA)
"""Dummies that consumers read with any weight."""


def among(kind: Tensor, kinds: tuple[Kind, ...]) -> Tensor:
    """Which entries are of one of these kinds."""
    return torch.isin(kind, torch.tensor([int(one) for one in kinds]))


@dataclass(frozen=True, eq=False)
class Channels:
    """The channels of one space, in order.

    >>> two = Channels.of(4, groups=2)
    >>> two.append(Kind.CLIQUE, 3).split(0, 1).width
    12
    """

    before: int
    """Channels before the attack, over all blocks."""

    kind: Tensor
    """`Kind` of each channel, int64."""

    origin: Tensor
    """Below `before` the original channel that it is, copies or helps to give; else a dummy's or a group's number."""

    unit: Tensor
    """Channels of one unit have the same incoming filter."""

    units: Units
    """What those filters are made of."""

    dummies: int = 0
    """Numbers handed out to dummies and to filters of noise so far."""

    @staticmethod
    def of(width: int, groups: int) -> Channels:
        """The channels of a space that nobody has touched."""
        index = torch.arange(width).view(groups, -1)
        return Channels(width, torch.zeros_like(index), index, index, Units.plain(torch.ones(width)))

    @property
    def groups(self) -> int:
        """Blocks."""
        return self.kind.shape[0]

    @property
    def block(self) -> int:
        """Channels in a block."""
        return self.kind.shape[1]

    @property
    def width(self) -> int:
        """Channels in all."""
        return self.kind.numel()

    @property
    def whole(self) -> Tensor:
        """Which channels are originals that nobody has split or dispersed yet."""
        counts = torch.bincount(self.unit.flatten(), minlength=self.units.count)
        return (self.kind == Kind.LIVE) & (self.unit < self.before) & (counts[self.unit] == 1)

    def append(self, kind: Kind | Tensor, count: int, weight: float | Tensor = 0.0) -> Channels:
        """Add `count` dummies to each block. A clique is all that one call adds to a block.

        Args:
            kind: One kind for all, or one per dummy, `[G, count]`.
            count: Dummies per block.
            weight: How strongly live channels read a dummy that should not be read: one for all, or `[G, count]`.
        """
        kinds = torch.full((self.groups, count), int(kind)) if isinstance(kind, Kind) else kind.long()
        if bool(among(kinds, (Kind.LIVE, Kind.ODD)).any()):
            raise AttackError("only dummies can be appended; use split for copies and cancel for groups")
        own = torch.arange(kinds.numel()).view(kinds.shape)
        number = torch.where(among(kinds, CLIQUES), own[:, :1], own) + self.dummies
        weights = torch.as_tensor(weight, dtype=torch.float64).expand(kinds.shape)
        return self._grown(
            kinds, number + self.before, own + self.units.count, self.units.and_plain(weights), kinds.numel()
        )

    def cancel(self, relation: Tensor) -> Channels:
        """Add a group of `2·(p + 1)` dummies to each block, whose outputs cancel where odd parts are linear.

        With filters `a₁ … aₚ` and `b = Σ cⱼ·aⱼ`, the dummies are `f(±aⱼ)` and `f(±b)`. Where `f(u) − f(−u)` is a
        multiple of `u`, readers' weights `±cⱼ` and `∓1` give zero, and no two of the dummies are proportional.

        Args:
            relation: The factors `c`, `[G, p]`.
        """
        filters = torch.arange(relation.numel()).view(relation.shape) + self.dummies
        unit = torch.arange(2 * (relation.shape[1] + 1) * self.groups).view(self.groups, -1) + self.units.count
        origin = (filters[:, :1] + self.before).expand_as(unit)
        kinds = torch.full_like(unit, int(Kind.ODD))
        return self._grown(kinds, origin, unit, self.units.and_odd(relation, filters), relation.numel())

    def disperse(self, index: Tensor) -> Channels:
        """Replace whole channels by five each that together give them, where odd parts are linear.

        `f(u) = f(−u) + f(u/2 + r) − f(−u/2 − r) + f(u/2 − r) − f(−u/2 + r)` for any `r`. The first of the five
        takes the channel's place.

        Args:
            index: Their places in each block, `[G, n]`.
        """
        filters = torch.arange(index.numel()).view(index.shape) + self.dummies
        unit = torch.arange(5 * index.numel()).view(self.groups, -1, 5) + self.units.count
        first = replace(self, unit=self.unit.scatter(1, index, unit[..., 0]))
        origin = self.origin.gather(1, index)[..., None].expand(-1, -1, 4).flatten(1)
        return first._grown(
            torch.zeros_like(origin), origin, unit[..., 1:].flatten(1), self.units.and_parts(filters), index.numel()
        )

    def split(self, index: int, count: int) -> Channels:
        """Add `count` copies of the channel at `index` of each block. Copies of a dummy are dummies of its kind."""
        again = torch.full((count,), index)
        return self._grown(self.kind[:, again], self.origin[:, again], self.unit[:, again], self.units, 0)

    def reorder(self, order: Tensor) -> Channels:
        """Channel `k` of a block becomes the one that stood at `order[g, k]`."""
        return replace(
            self,
            kind=self.kind.gather(1, order),
            origin=self.origin.gather(1, order),
            unit=self.unit.gather(1, order),
        )

    def trade(self, order: Tensor) -> Channels:
        """Block `g` becomes the one that stood at `order[g]`."""
        return replace(self, kind=self.kind[order], origin=self.origin[order], unit=self.unit[order])

    def _grown(self, kind: Tensor, origin: Tensor, unit: Tensor, units: Units, numbers: int) -> Channels:
        return replace(
            self,
            kind=torch.cat([self.kind, kind], 1),
            origin=torch.cat([self.origin, origin], 1),
            unit=torch.cat([self.unit, unit], 1),
            units=units,
            dummies=self.dummies + numbers,
        )


def deal_shares(channels: Channels, spread: float, generator: torch.Generator) -> Tensor:
    """How strongly live channels read each channel, relative to the original or the group that it belongs to.

    The shares of one unit sum to the unit's weight: one for an original. However often a channel was split, all its
    copies carry alike: `1/k`, more or less by a relative `spread`. Dummies that stand alone have the weight of their
    unit, mostly 0.

    >>> deal_shares(Channels.of(2, 1).split(0, 1), 0.0, torch.Generator()).tolist()
    [0.5, 1.0, 0.5]
    """
    kind, unit = channels.kind.flatten(), channels.unit.flatten()
    weight = channels.units.weight[unit]
    free = torch.randn(channels.width, generator=generator, dtype=torch.float64)
    dealt = among(kind, (Kind.LIVE, Kind.ODD))
    totals = torch.zeros(2, channels.units.count, dtype=torch.float64)
    part = dealt.double()
    free *= part * spread
    totals.index_add_(1, unit, torch.stack([part, free]))
    copies, excess = totals[0, unit], totals[1, unit]
    if not bool((copies > 1).any()):
        return weight  # nothing was split
    # What the others leave is spread evenly, so that the sum is exact.
    return torch.where(copies > 1, weight * (1 + free - excess / copies.clamp(min=1)) / copies.clamp(min=1), weight)
