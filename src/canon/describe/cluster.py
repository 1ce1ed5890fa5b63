"""Clusters of equal signatures, by hashing: near-linear in the number of channels, never all pairs."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
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
    if width < 2:
        return torch.arange(width)
    generator = torch.Generator().manual_seed(seed)
    projected = torch.zeros(width, TABLES * PROJECTIONS, dtype=torch.float64)
    for index in signature.hashed:
        block = signature.blocks[index]
        shape = (block.shape[1], TABLES * PROJECTIONS)
        projected += block @ torch.randn(shape, generator=generator, dtype=torch.float64)
    shift = torch.rand(TABLES * PROJECTIONS, generator=generator, dtype=torch.float64)
    cells = torch.floor(projected / CELL + shift).long().view(width, TABLES, PROJECTIONS)
    mixer = torch.randint(1, 1 << 40, (PROJECTIONS + 1,), generator=generator) * 2 + 1
    leader = torch.arange(width)
    for table in range(TABLES):
        # One channel of each class found so far stands for all of it: after the first table few remain.
        heads = torch.nonzero(leader == torch.arange(width)).flatten()
        keys = (cells[heads, table] * mixer[:-1]).sum(1) + label[heads] * mixer[-1]
        order = torch.argsort(keys, stable=True)
        ordered = keys[order]
        starts = torch.ones(heads.numel(), dtype=torch.bool)
        starts[1:] = ordered[1:] != ordered[:-1]
        first = heads[order[torch.nonzero(starts).flatten()[starts.cumsum(0) - 1]]]
        second = heads[order]
        apart = first != second
        first, second = first[apart], second[apart]
        if first.numel() == 0:
            continue
        agree = (label[first] == label[second]) & (signature.distance(first, second) <= tolerance)
        leader = _components(width, first[agree], second[agree])[leader]
    return leader


def _components(width: int, a: Tensor, b: Tensor) -> Tensor:
    ones = np.ones(a.numel(), dtype=np.int8)
    links = coo_array((ones, (a.numpy(), b.numpy())), shape=(width, width))
    _, found = connected_components(links, directed=False)
    component = torch.from_numpy(found).long()
    smallest = torch.full((width,), width, dtype=torch.int64)
    smallest.scatter_reduce_(0, component, torch.arange(width), "amin")
    return smallest[component]
