"""Clusters of equal signatures, by hashing: near-linear in the number of channels, never all pairs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from canon.describe.arrays import Array, quiet
from canon.describe.signature import Signature

TABLES = 6
"""Shifted grids: two equal channels are missed only if a cell wall runs between them in every one."""

PROJECTIONS = 8
"""Coordinates per cell."""

CELL = 0.25
"""Width of a cell, far above any tolerance, far below the spread of distinct channels."""


def cluster(signature: Signature, label: Array, tolerance: float, seed: int = 0) -> Array:
    """A class for every channel: the smallest channel index that it agrees with.

    Args:
        signature: What the channels compute.
        label: Channels with different labels are never in one class.
        tolerance: Largest disagreement within a class.
        seed: Of the random projections.
    """
    leader = everyone = np.arange(signature.width)
    if signature.width < 2:
        return leader
    keys = _keys(signature, label, seed)
    while True:
        # One channel of each class found so far stands for all of it.
        heads = np.flatnonzero(leader == everyone)
        first, second = _meetings(keys[:, heads])
        if first.size == 0:
            return leader
        first, second = heads[first], heads[second]
        agree = (label[first] == label[second]) & (signature.distance(first, second) <= tolerance)
        found = np.count_nonzero(agree)
        if found:
            leader = _join(everyone, first[agree], second[agree])[leader]
        if found in (0, agree.size):
            return leader  # a cell in which some agree and some do not is looked at again


@quiet
def _keys(signature: Signature, label: Array, seed: int) -> Array:
    """The cell of every channel in every table as one number, `TABLES x width`."""
    width = signature.width
    hashed = [stack.data.transpose(1, 0, 2).reshape(width, -1) for stack in signature.stacks if stack.hashed]
    features = np.concatenate(hashed, axis=1) if hashed else np.zeros((width, 0))
    numbers = features.shape[1]
    table, shift, mixer = _random(1 << max(0, numbers - 1).bit_length(), seed)
    # In torch: numpy would bring threads of its own.
    cells = np.floor((torch.from_numpy(features) @ table[:numbers]).numpy() + shift).astype(np.int64)
    mixed = np.einsum("wtp,p->tw", cells.reshape(width, TABLES, PROJECTIONS), mixer[:-1])
    return np.asarray(mixed + label * mixer[-1])


@lru_cache(maxsize=32)
def _random(numbers: int, seed: int) -> tuple[Tensor, Array, Array]:
    """Projections in cells, shifts and multipliers of the hash."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(numbers, TABLES * PROJECTIONS, generator=generator, dtype=torch.float64)
    shift = torch.rand(TABLES * PROJECTIONS, generator=generator, dtype=torch.float64)
    mixer = torch.randint(1, 1 << 40, (PROJECTIONS + 1,), generator=generator) * 2 + 1
    return table / CELL, shift.numpy(), mixer.numpy()


def _meetings(keys: Array) -> tuple[Array, Array]:
    """Pairs of columns that share a cell in some table: the first column of the cell and each further one."""
    tables, width = keys.shape
    # One table after the other in one sort: tables have numbers of their own.
    flat = (keys + (np.arange(1, tables + 1) << 56)[:, None]).ravel()
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    further = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    if further.size == 0:
        return further, further
    # Where the second of a cell stands, the first is right before it; the rest of the cell follows.
    second = np.diff(further, prepend=-1) != 1
    start = np.maximum.accumulate(np.where(second, further - 1, 0))
    pairs = np.unique(order[start] % width * width + order[further] % width)  # equal channels meet in most tables
    return pairs // width, pairs % width


def _join(everyone: Array, first: Array, second: Array) -> Array:
    """For every channel the smallest that it is linked to."""
    leader = everyone
    while True:
        low = np.minimum(leader[first], leader[second])
        found = leader.copy()
        np.minimum.at(found, second, low)
        np.minimum.at(found, first, low)
        found = found[found]
        if np.array_equal(found, leader):
            return leader
        leader = found
