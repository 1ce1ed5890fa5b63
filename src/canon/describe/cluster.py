"""Clusters of equal signatures, by hashing: near-linear in the number of channels, never all pairs."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from canon.describe.signature import Signature

TABLES = 6
"""Shifted grids: two equal channels are missed only if a cell wall runs between them in every one."""

PROJECTIONS = 8
"""Coordinates per cell."""

CELL = 0.25
"""Width of a cell, far above any tolerance, far below the spread of distinct channels."""


def cluster(signature: Signature, label: Tensor, tolerance: float, seed: int = 0) -> Tensor:
    """A class for every channel: the smallest channel index that it agrees with.

    Args:
        signature: What the channels compute.
        label: Channels with different labels are never in one class.
        tolerance: Largest disagreement within a class.
        seed: Of the random projections.
    """
    width = signature.width
    leader = torch.arange(width)
    if width < 2:
        return leader
    keys = _keys(signature, label, seed)
    everyone = leader
    while True:
        # One channel of each class found so far stands for all of it.
        heads = torch.nonzero(leader == everyone).flatten()
        first, second = _meetings(keys[heads])
        if first.numel() == 0:
            return leader
        first, second = heads[first], heads[second]
        agree = (label[first] == label[second]) & (signature.distance(first, second) <= tolerance)
        found = int(agree.sum())
        if found:
            leader = _join(everyone, first[agree], second[agree])[leader]
        if found in (0, agree.numel()):
            return leader  # a cell in which some agree and some do not is looked at again


def _keys(signature: Signature, label: Tensor, seed: int) -> Tensor:
    """The cell of every channel in every table as one number, `width x TABLES`."""
    hashed = [stack.data.transpose(0, 1).flatten(1) for stack in signature.stacks if stack.hashed]
    width = signature.width
    features = torch.cat(hashed, dim=1) if hashed else torch.zeros(width, 0, dtype=torch.float64)
    numbers = features.shape[1]
    table, shift, mixer = _random(1 << max(0, numbers - 1).bit_length(), seed)
    cells = torch.floor(features @ table[:numbers] / CELL + shift).long().view(width, TABLES, PROJECTIONS)
    return (cells * mixer[:-1]).sum(dim=2) + (label * mixer[-1])[:, None]


@lru_cache(maxsize=32)
def _random(numbers: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Projections, shifts and multipliers of the hash."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(numbers, TABLES * PROJECTIONS, generator=generator, dtype=torch.float64)
    shift = torch.rand(TABLES * PROJECTIONS, generator=generator, dtype=torch.float64)
    mixer = torch.randint(1, 1 << 40, (PROJECTIONS + 1,), generator=generator) * 2 + 1
    return table, shift, mixer


def _meetings(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of rows that share a cell in some table: the first row of the cell and each further one."""
    ordered, order = torch.sort(keys, dim=0, stable=True)
    starts = torch.ones(keys.shape, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    position = torch.where(starts, torch.arange(keys.shape[0])[:, None], 0).cummax(dim=0).values
    first = order.gather(0, position)
    return first[~starts], order[~starts]


def _join(everyone: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """For every channel the smallest that it is linked to."""
    leader = everyone
    while True:
        low = torch.minimum(leader[first], leader[second])
        found = leader.scatter_reduce(0, second, low, "amin").scatter_reduce(0, first, low, "amin")
        found = found[found]
        if torch.equal(found, leader):
            return leader
        leader = found
