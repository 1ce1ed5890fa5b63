"""Clusters by hashing agree with all pairs, compared one by one."""

from __future__ import annotations

import numpy as np
import torch

from canon.describe import Array, Signature, Stack, cluster

TOLERANCE = 5e-3


def all_pairs(signature: Signature, label: Array, tolerance: float) -> list[int]:
    """The oracle: join every pair that agrees, smallest index first."""
    leader = list(range(signature.width))
    for i in range(signature.width):
        for j in range(i):
            worst = max(
                float(np.linalg.norm(block[i] - block[j]) / (1 if stack.slack is None else max(stack.slack[0, [i, j]])))
                for stack in signature.stacks
                for block in stack.data
            )
            if label[i] == label[j] and worst <= tolerance:
                old, new = max(leader[i], leader[j]), min(leader[i], leader[j])
                leader = [new if k == old else k for k in leader]
    return leader


def planted(width: int, copies: int, noise: float, seed: int) -> Signature:
    """Random directions and offsets, some of them planted again with noise."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.cat([torch.arange(width), torch.randint(width, (copies,), generator=generator)])
    source = source[torch.randperm(len(source), generator=generator)]
    directions = torch.randn(width, 16, generator=generator, dtype=torch.float64)
    directions = (directions / directions.norm(dim=1, keepdim=True))[source]
    offsets = torch.randn(width, 1, generator=generator, dtype=torch.float64)[source]
    directions = directions + noise * torch.randn(directions.shape, generator=generator, dtype=torch.float64)
    hashed, other = directions[None].numpy(), offsets[None].numpy()
    slack = np.full((1, len(source)), 2.0)
    return Signature(len(source), [Stack(hashed, None, True), Stack(other, slack, False)])


def test_agrees_with_all_pairs() -> None:
    for seed in range(20):
        signature = planted(30, 25, 1e-5, seed)
        label = np.zeros(signature.width, dtype=np.int64)
        assert cluster(signature, label, TOLERANCE).tolist() == all_pairs(signature, label, TOLERANCE)


def test_labels_keep_apart() -> None:
    signature = planted(10, 30, 0.0, 1)
    label = np.arange(signature.width) % 3
    found = cluster(signature, label, TOLERANCE)
    assert found.tolist() == all_pairs(signature, label, TOLERANCE)
    assert np.array_equal(label[found], label)


def test_distinct_channels_stay_apart() -> None:
    signature = planted(400, 0, 0.0, 2)
    assert cluster(signature, np.zeros(400, dtype=np.int64), TOLERANCE).tolist() == list(range(400))


def test_an_offset_alone_keeps_apart() -> None:
    """Offsets are not hashed, and still decide."""
    signature = planted(1, 5, 0.0, 3)
    signature.stacks[1] = Stack(np.arange(6.0)[None, :, None], None, False)
    assert cluster(signature, np.zeros(6, dtype=np.int64), TOLERANCE).tolist() == list(range(6))


def test_many_copies_of_few() -> None:
    signature = planted(3, 997, 1e-6, 4)
    found = cluster(signature, np.zeros(1000, dtype=np.int64), TOLERANCE)
    assert np.unique(found).size == 3
    assert bool((found <= np.arange(1000)).all())


def test_one_channel() -> None:
    assert cluster(planted(1, 0, 0.0, 0), np.zeros(1, dtype=np.int64), TOLERANCE).tolist() == [0]
