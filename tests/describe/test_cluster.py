"""Clusters by hashing agree with all pairs, compared one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from canon.describe import Signature, Stack, cluster

TOLERANCE = 5e-3


def all_pairs(signature: Signature, label: Tensor, tolerance: float) -> list[int]:
    """The oracle: join every pair that agrees, smallest index first."""
    leader = list(range(signature.width))
    for i in range(signature.width):
        for j in range(i):
            worst = max(
                float((block[i] - block[j]).norm() / (1 if stack.slack is None else max(stack.slack[:, [i, j]][0])))
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
    slack = torch.full((1, len(source)), 2.0, dtype=torch.float64)
    return Signature(len(source), [Stack(directions[None], None, True), Stack(offsets[None], slack, False)])


def test_agrees_with_all_pairs() -> None:
    for seed in range(20):
        signature = planted(30, 25, 1e-5, seed)
        label = torch.zeros(signature.width, dtype=torch.int64)
        assert cluster(signature, label, TOLERANCE).tolist() == all_pairs(signature, label, TOLERANCE)


def test_labels_keep_apart() -> None:
    signature = planted(10, 30, 0.0, 1)
    label = torch.arange(signature.width) % 3
    found = cluster(signature, label, TOLERANCE)
    assert found.tolist() == all_pairs(signature, label, TOLERANCE)
    assert torch.equal(label[found], label)


def test_distinct_channels_stay_apart() -> None:
    signature = planted(400, 0, 0.0, 2)
    assert cluster(signature, torch.zeros(400, dtype=torch.int64), TOLERANCE).tolist() == list(range(400))


def test_an_offset_alone_keeps_apart() -> None:
    """Offsets are not hashed, and still decide."""
    signature = planted(1, 5, 0.0, 3)
    signature.stacks[1] = Stack(torch.arange(6, dtype=torch.float64)[None, :, None], None, False)
    assert cluster(signature, torch.zeros(6, dtype=torch.int64), TOLERANCE).tolist() == list(range(6))


def test_many_copies_of_few() -> None:
    signature = planted(3, 997, 1e-6, 4)
    found = cluster(signature, torch.zeros(1000, dtype=torch.int64), TOLERANCE)
    assert found.unique().numel() == 3
    assert bool((found <= torch.arange(1000)).all())


def test_one_channel() -> None:
    assert cluster(planted(1, 0, 0.0, 0), torch.zeros(1, dtype=torch.int64), TOLERANCE).tolist() == [0]
