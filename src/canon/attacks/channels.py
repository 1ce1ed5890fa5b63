"""Channels: what every channel of a space is, while primitives add to them. Symbols only; no weight is touched.

A space is cut into `G` blocks of equal width (one block unless a grouped convolution reads or makes it), and all
tensors here have the shape `[G, width of a block]`. Everything a primitive does is said in three words: `append`
dummies, `split` a channel, `reorder`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import final

import torch
from torch import Tensor

from canon.errors import AttackError


@final
class Kind(IntEnum):
    """What a channel is after an attack."""

    LIVE = 0
    """An original channel or a copy of one."""

    ZERO_IN = 1
    """Null at every consumer, which may read it with any weight."""

    ZERO_OUT = 2
    """Read by no live channel; it may hold anything."""

    CLIQUE = 3
    """Shares its incoming filter with the other members; live consumers' weights on them sum to zero."""


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
    """Channels of one origin share their incoming filter: below `before` an original channel, else a dummy's own."""

    dummies: int = 0
    """Origins handed out to dummies so far."""

    @staticmethod
    def of(width: int, groups: int) -> Channels:
        """The channels of a space that nobody has touched."""
        index = torch.arange(width).view(groups, -1)
        return Channels(width, torch.zeros_like(index), index)

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

    def append(self, kind: Kind | Tensor, count: int) -> Channels:
        """Add `count` dummies to each block. A clique is all that one call adds to a block.

        Args:
            kind: One kind for all, or one per dummy, `[G, count]`.
            count: Dummies per block.
        """
        kinds = torch.full((self.groups, count), int(kind)) if isinstance(kind, Kind) else kind.long()
        if bool((kinds == Kind.LIVE).any()):
            raise AttackError("only dummies can be appended; use split for copies")
        own = torch.arange(kinds.numel()).view(kinds.shape)
        origin = torch.where(kinds == Kind.CLIQUE, own[:, :1], own) + self.before + self.dummies
        return replace(
            self,
            kind=torch.cat([self.kind, kinds], 1),
            origin=torch.cat([self.origin, origin], 1),
            dummies=self.dummies + kinds.numel(),
        )

    def split(self, index: int, count: int) -> Channels:
        """Add `count` copies of the channel at `index` of each block. Copies of a dummy are dummies of its kind."""
        again = torch.full((count,), index)
        return replace(
            self,
            kind=torch.cat([self.kind, self.kind[:, again]], 1),
            origin=torch.cat([self.origin, self.origin[:, again]], 1),
        )

    def reorder(self, order: Tensor) -> Channels:
        """Channel `k` of a block becomes the one that stood at `order[g, k]`."""
        return replace(self, kind=self.kind.gather(1, order), origin=self.origin.gather(1, order))


def deal_shares(channels: Channels, spread: float, generator: torch.Generator) -> Tensor:
    """What part of its origin each live channel carries: the parts of one origin sum to one. Dummies carry 0.

    However often a channel was split, all its copies carry alike: `1/k`, more or less by a relative `spread`.

    >>> deal_shares(Channels.of(2, 1).split(0, 1), 0.0, torch.Generator()).tolist()
    [0.5, 1.0, 0.5]
    """
    live = (channels.kind == Kind.LIVE).flatten()
    weight = live.double()
    free = torch.randn(channels.width, generator=generator, dtype=torch.float64)
    if int(live.sum()) == channels.before:
        return weight  # nothing was split
    free *= weight * spread
    origin = torch.where(live, channels.origin.flatten(), 0)
    totals = torch.zeros(2, channels.before, dtype=torch.float64)
    totals.index_add_(1, origin, torch.stack([weight, free]))
    copies, excess = totals[0, origin], totals[1, origin]
    # What the others leave is spread evenly, so that the sum is exact.
    return (weight + free - weight * excess / copies) / copies


def shuffle(channels: Channels, generator: torch.Generator) -> Channels:
    """A random order in which, where possible, no original channel keeps its old place."""
    order = torch.rand(channels.kind.shape, generator=generator).argsort(1)
    origin = channels.origin.gather(1, order)
    old = torch.arange(channels.before).view(channels.groups, -1)
    stuck = origin[:, : old.shape[1]] == old
    # Those that kept their place change places in a ring: each goes to where another one stood.
    for group in torch.nonzero(stuck.any(1)).flatten().tolist():
        ring = torch.nonzero(stuck[group]).flatten()
        if ring.numel() == 1:
            others = torch.nonzero(origin[group] != origin[group, ring]).flatten()
            pick = torch.randint(max(1, others.numel()), (1,), generator=generator)
            ring = torch.cat([ring, others[pick] if others.numel() else others])
        order[group, ring] = order[group, ring.roll(1)]
    return channels.reorder(order)
