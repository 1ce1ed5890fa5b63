"""Many suspects' channels to one channel of the owner's, and what chance would give.

Every channel of the suspect goes to the owner's channel that it is most like, if it is one at all. Nothing is one to
one: copies of a channel go to it together, and what an attacker added goes nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from canon.containment.yardstick import Yardstick

CHUNK: Final = 256
"""Suspect's channels compared at a time."""

FALSE: Final = 1e-4
"""Chance at which a channel that has nothing to do with the owner's may pass for one of them, if rows were random."""

FALSE_AMONG: Final = 1e-2
"""Of the matches of one layer that are like the owner's as far as some cosine, the part that chance may have made."""

MOST: Final = 0.5
"""Share of a layer's channels that must be matched so, for many to say what one does not."""

LEAST: Final = 0.6
"""Nothing below this cosine is a match, however many dimensions there are."""

NEARER: Final = 0.5
"""A match is distinct if `1 - cos` to the owner's next channel is larger than to the match by this factor."""

EXACT: Final = 1e-6
"""`1 - cos` from which on float32 tells nothing."""

COPIES: Final = 4.0
"""Further copies of a channel may be farther from it than the best one by this factor, or the layer's usual one."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """For every channel of the suspect."""

    index: Tensor
    """The owner's channel that it is most like."""

    cosine: Tensor
    """How alike they are."""

    following: Tensor
    """The largest cosine to another channel of the owner's, of those that differ from the match."""

    flipped: Tensor
    """Whether it is most like it with the other sign."""


def compare(
    yardstick: Yardstick, features: Tensor, label: Tensor, owner_label: Tensor, leader: Tensor, flips: bool
) -> Pairs:
    """The nearest of the owner's channels and the next.

    Args:
        yardstick: The owner's channels.
        features: The suspect's.
        label: Of the suspect's channels: the block that each may not leave.
        owner_label: Of the owner's.
        leader: For every channel of the owner's the first one that it cannot be told from.
        flips: Whether a sign passes.
    """
    ours = yardstick.measure(features)
    signs = _Signs(yardstick, ours, features) if flips else None
    apart = bool((owner_label != owner_label[0]).any())
    alone = bool((leader == torch.arange(leader.numel())).all())
    found: list[tuple[Tensor, ...]] = []
    for start in range(0, features.shape[0], CHUNK):
        stretch = slice(start, start + CHUNK)
        flipped = None
        if signs is None:
            cosine = ours[stretch] @ yardstick.owner.T
        else:
            cosine, flipped = signs.better(stretch)
        if apart:
            cosine.masked_fill_(label[stretch, None] != owner_label, -1.0)
        best, index = cosine.max(dim=1)
        sign = torch.zeros_like(index, dtype=torch.bool)
        if flipped is not None:
            sign = flipped.gather(1, index[:, None])[:, 0]
        if alone:
            cosine.scatter_(1, index[:, None], -1.0)
        else:
            cosine.masked_fill_(leader[index][:, None] == leader, -1.0)
        found.append((index, best, cosine.amax(dim=1), sign))
    index, best, following, sign = (torch.cat(column) for column in zip(*found, strict=True))
    return Pairs(index, best.double(), following.double(), sign)


class _Signs:
    """Cosines with either sign, by one product of directions, which the other sign turns around."""

    def __init__(self, yardstick: Yardstick, ours: Tensor, features: Tensor) -> None:
        columns = yardstick.columns
        turned = yardstick.measure(features, flipped=True)
        self.straight, self.owner = ours[:, :columns], yardstick.owner[:, :columns].T
        self.singles, self.turned = ours[:, columns:], turned[:, columns:]
        self.owner_singles = yardstick.owner[:, columns:].T
        # All that is known of a channel has length 1, and single numbers may be longer with the other sign.
        sizes = [torch.linalg.vector_norm(whole[:, :columns], dim=1, keepdim=True) for whole in (turned, ours)]
        self.ratio = -sizes[0] / sizes[1].clamp(min=1e-30)
        self.even = torch.equal(turned[:, columns:], ours[:, columns:])

    def better(self, stretch: slice) -> tuple[Tensor, Tensor]:
        """The larger cosine of both signs, and whether it is the other sign's."""
        directions = self.straight[stretch] @ self.owner
        if self.even:
            flipped = directions < 0
            return torch.addmm(directions.abs_(), self.singles[stretch], self.owner_singles), flipped
        cosine = torch.addmm(directions, self.singles[stretch], self.owner_singles)
        other = torch.addmm(directions.mul_(self.ratio[stretch]), self.turned[stretch], self.owner_singles)
        return torch.maximum(cosine, other), other > cosine


def chance(dimension: float, channels: int) -> float:
    """The cosine that random rows of a dimension reach with one of so many channels, once in `1 / FALSE` times."""
    if dimension <= 2:
        return 1.0
    return max(LEAST, float((1 - (FALSE / max(1, channels)) ** (2 / (dimension - 1))) ** 0.5))


@dataclass(frozen=True)
class Bar:
    """What is beyond chance in one layer."""

    dimension: float
    """In how many ways the owner's channels differ."""

    channels: int
    """How many the owner has."""

    least: float
    """A cosine that must be reached whatever chance would give."""

    @property
    def cosine(self) -> float:
        """What a channel must reach by itself."""
        return max(chance(self.dimension, self.channels), self.least)

    def together(self, cosine: Tensor) -> Tensor:
        """Which of the owner's channels are beyond chance together, by the cosines of their matches.

        Where rows are short, hardly any is by itself. That most channels of a layer have a match is no accident: of
        those that reach a cosine, at most `FALSE_AMONG` would if none were the owner's (Benjamini and Hochberg's rule).
        """
        beyond = torch.zeros(self.channels, dtype=torch.bool)
        if self.dimension <= 2:
            return beyond
        luck = self.channels * (1 - cosine.square()).clamp(min=0) ** ((self.dimension - 1) / 2)
        luck.masked_fill_(cosine < max(LEAST, self.least), 1.0)
        order = torch.argsort(luck)
        enough = luck[order] * self.channels <= FALSE_AMONG * torch.arange(1, self.channels + 1)
        count = int(torch.nonzero(enough).amax()) + 1 if bool(enough.any()) else 0
        if count >= MOST * self.channels:
            beyond[order[:count]] = True
        return beyond


@dataclass(frozen=True, eq=False)
class Accepted:
    """Which of the suspect's channels are the owner's."""

    match: Tensor
    """For every channel of the suspect the owner's channel that it is, or -1."""

    best: Tensor
    """For every channel of the owner's the suspect's channel that is most like it, or -1."""

    found: Tensor
    """For every channel of the owner's: whether it was found."""

    distinct: Tensor
    """Whether it was found, and nothing else of the owner's is as near: not by chance."""

    distance: Tensor
    """`1 - cos` to the best; 1 where there is none."""

    together: Tensor
    """Whether it would be distinct if many may say what one does not: what is counted in the end."""

    alone: bool = False
    """Whether one layer spoke for all that make the space: the others may be anybody's."""

    @property
    def told(self) -> int:
        """How many were found distinctly."""
        return int(self.distinct.sum())


def accept(pairs: Pairs, leader: Tensor, bar: Bar, floor: float) -> Accepted:
    """Decide which pairs count.

    Args:
        pairs: From `compare`.
        leader: For every channel of the owner's the first one that it cannot be told from.
        bar: What is beyond chance.
        floor: Cosine from which on a channel may be a match at all.
    """
    channels, distance = leader.numel(), (1 - pairs.cosine).clamp(min=0)
    nearest = torch.full((channels,), 2.0, dtype=torch.float64)
    nearest.scatter_reduce_(0, pairs.index, distance, "amin")
    usual = float(nearest[nearest <= 1 - floor].median()) if bool((nearest <= 1 - floor).any()) else 0.0
    base = nearest.clamp(min=max(EXACT / COPIES, usual))[pairs.index]
    taken = (pairs.cosine >= floor) & _with_the_best(pairs.index, distance / base)
    match = deal(torch.where(taken, pairs.index, -1), leader)
    best = _first(match, distance, channels)
    found = best >= 0
    at = best.clamp(min=0)
    near, other = distance[at], 1 - pairs.following[at]
    clear, cosine = found & (near <= NEARER * other), pairs.cosine[at]
    together = bar.together(torch.where(clear, cosine, 0.0))
    return Accepted(match, best, found, clear & (cosine >= bar.cosine), torch.where(found, near, 1.0), together)


def _with_the_best(index: Tensor, ratio: Tensor) -> Tensor:
    """Which of the suspect's channels go with the best copy of the owner's that each is most like.

    Those that are farther by `COPIES` do not, but no limit cuts between two that are about as far: whoever adds pairs
    that cancel would have one of each counted. So it is the widest gap from half to twice that factor.

    Args:
        index: The owner's channel that each is most like.
        ratio: How far it is, relative to the best.
    """
    order = torch.argsort(ratio, stable=True)
    order = order[torch.argsort(index[order], stable=True)]
    group, far = index[order], ratio[order].clamp(COPIES / 2, 2 * COPIES)
    following = torch.full_like(far, 2 * COPIES)
    following[:-1] = torch.where(group[1:] == group[:-1], far[1:], following[:-1])
    gap = following / far
    widest, limit = torch.zeros((2, int(index.max()) + 1), dtype=far.dtype)
    widest.scatter_reduce_(0, group, gap, "amax")
    limit.scatter_reduce_(0, group, torch.where(gap == widest[group], far, 0.0), "amax")
    taken: Tensor = ratio <= limit[index]
    return taken


def deal(match: Tensor, leader: Tensor) -> Tensor:
    """Channels of the owner's that cannot be told from each other: what goes to one of them is dealt out to all."""
    if bool((leader == torch.arange(leader.numel())).all()):
        return match
    shared = torch.bincount(leader, minlength=leader.numel()) > 1
    mine = torch.nonzero((match >= 0) & shared[leader[match.clamp(min=0)]]).flatten()
    group = leader[match[mine]]
    order = torch.argsort(group, stable=True)
    members = torch.argsort(leader, stable=True)
    count = torch.bincount(leader, minlength=leader.numel())
    start = count.cumsum(0) - count
    sizes = torch.bincount(group, minlength=leader.numel())
    rank = torch.arange(mine.numel()) - (sizes.cumsum(0) - sizes)[group[order]]
    dealt = match.clone()
    dealt[mine[order]] = members[start[group[order]] + rank % count[group[order]]]
    return dealt


def _first(match: Tensor, distance: Tensor, channels: int) -> Tensor:
    """For every channel of the owner's the nearest of those that match it, or -1."""
    order = torch.argsort(distance, descending=True, stable=True)
    order = order[match[order] >= 0]
    best = torch.full((channels,), -1, dtype=torch.int64)
    best.index_put_((match[order],), order)  # the last one to be written is the nearest
    return best
