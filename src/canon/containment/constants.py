"""Channels that have one value whatever the input is.

A row without weights makes its offset. Where a scale passes, all such channels of a space are multiples of each other
where they are read, so none can be told from another, and none has to be: their values say how much of the owner's
constant each of them is, and what reads them adds up. Where none passes, as behind SiLU, equal values are one constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from canon.containment.matching import Accepted, Pairs
from canon.containment.yardstick import Yardstick
from canon.verify.layout import Step, ratios

CONSTANTS_APART: Final = 0.3
"""How far apart what is known of two constants may be: their signs, and their ratio at several points."""

VALUES_APART: Final = 1e-4
"""The same where a scale does not pass what reads them: constants of different values are then no multiples."""

COARSE_VALUES_APART: Final = 1.1 * math.pi / 256
"""The same by the portrait of a key, for each number: it is kept as one of 256 angles."""

RESIDUE: Final = 1e-6
"""Constants that are smaller than the largest one by this factor are what rounding left."""

SIZES: Final = 1e4
"""Constants are taken one by one if none is larger or smaller than its counterpart by more than this."""


def join_constants(
    pairs: Pairs,
    accepted: Accepted,
    yardstick: Yardstick,
    step: Step,
    features: Tensor,
    scales: Mapping[int, Tensor],
    blocks: tuple[Tensor, Tensor],
    limit: float,
) -> tuple[Pairs, Accepted]:
    """What was accepted, with every constant of the suspect given to one of the owner's.

    Args:
        pairs: All comparisons.
        accepted: What came of them.
        yardstick: The owner's channels.
        step: The owner's step.
        features: The suspect's channels.
        scales: By tap: the suspect's scales.
        blocks: Of the suspect's and of the owner's channels: the block that each may not leave.
        limit: How far apart what is known of two constants may be.
    """
    still = yardstick.stillness(features)
    here, own = torch.nonzero(still).flatten(), torch.nonzero(yardstick.still).flatten()
    if not here.numel():
        return pairs, accepted
    match, best = accepted.match.clone(), accepted.best.clone()
    match[here] = -1
    best[own] = -1
    if own.numel():
        gap = torch.cdist(yardstick.singles_of(features[here]), yardstick.singles[own])
        gap.masked_fill_(blocks[0][here, None] != blocks[1][own], float("inf"))
        least, nearest = gap.min(dim=1)
        target = torch.where(least <= limit, _stand_in(own, step)[nearest], -1)
        size = _size(scales, pairs.index.numel())
        match[here] = _one_by_one(here, target, own, scales, step, size[here])
        _lead(best, here, match[here], size)
    # A channel of the owner's that only a constant stood for is not found any longer.
    lost = (best >= 0) & (match[best.clamp(min=0)] < 0)
    best[lost] = -1
    found = best >= 0
    flipped = pairs.flipped.clone()
    flipped[here] = False
    cosine = pairs.cosine.clone()
    cosine[here] = torch.where(match[here] >= 0, 1.0, cosine[here])
    accepted = replace(
        accepted,
        match=match,
        best=best,
        found=found,
        distinct=accepted.distinct & found & ~yardstick.still,
        together=accepted.together & found & ~yardstick.still,
        distance=torch.where(found, accepted.distance, 1.0),
    )
    return replace(pairs, flipped=flipped, cosine=cosine), accepted


def values_apart(yardstick: Yardstick, reduced: bool) -> float:
    """How far apart what is known of two constants may be where no scale passes; `reduced`: as a key keeps it."""
    numbers = yardstick.singles.shape[1] / 2  # on circles
    return COARSE_VALUES_APART * numbers**0.5 if reduced else VALUES_APART


def _size(scales: Mapping[int, Tensor], channels: int) -> Tensor:
    """For every channel its largest scale."""
    return torch.stack([torch.zeros(channels, dtype=torch.float64), *(s.abs() for s in scales.values())]).amax(dim=0)


def _stand_in(own: Tensor, step: Step) -> Tensor:
    """For every constant of the owner's the largest of those that it cannot be told from."""
    size, leader = _size(step.scales, step.leader.numel())[own], step.leader[own]
    order = torch.argsort(size, stable=True)
    largest = torch.zeros_like(step.leader)
    largest.index_put_((leader[order],), own[order])  # the last one to be written is the largest
    return largest[leader]


def _one_by_one(
    here: Tensor, target: Tensor, own: Tensor, scales: Mapping[int, Tensor], step: Step, size: Tensor
) -> Tensor:
    """As many constants as the owner has, of their sizes: each is one of the owner's. Otherwise they go together."""
    together = _without_residues(target, size)
    group = torch.where(target >= 0, step.leader[target.clamp(min=0)], -1)
    order, members = (torch.argsort(x, stable=True) for x in (group, step.leader[own]))
    if not torch.equal(group[order], step.leader[own][members]):
        return together
    alone = torch.empty_like(target)
    alone[order] = own[members]
    mine = {tap: scale[here] for tap, scale in scales.items()}
    for factor in ratios(mine, step.scales, alone).values():
        if bool((factor.abs() > SIZES).any()) or bool((factor.abs() < 1 / SIZES).any()):
            return together
    return alone


def _without_residues(target: Tensor, size: Tensor) -> Tensor:
    """Next to the largest constant, what rounding left of a sum is nothing, and reads nothing."""
    largest = torch.zeros(int(target.max()) + 2, dtype=size.dtype)
    largest.scatter_reduce_(0, target + 1, size, "amax")
    return torch.where(size >= RESIDUE * largest[target + 1], target, -1)


def _lead(best: Tensor, here: Tensor, match: Tensor, size: Tensor) -> None:
    """The largest constant stands for the others: a small one may be what rounding left of a sum."""
    order = torch.argsort(size[here], stable=True)
    order = order[match[order] >= 0]
    best.index_put_((match[order],), here[order])
