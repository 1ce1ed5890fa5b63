"""Channels like the owner's that cancel each other, and layers whose rows are too short to be known one by one."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

import canon
from canon.containment.matching import Bar, Pairs, accept
from tests.containment.disguises import pruned, relative_noise

GRAY = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def gray(seed: int = 0) -> nn.Sequential:
    """Its first rows have nine numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 48, 3), nn.ReLU(), nn.Conv2d(48, 48, 3), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
        ).eval()  # fmt: skip


@pytest.mark.parametrize("by_key", [False, True])
def test_short_rows_are_known_together(by_key: bool) -> None:
    owner = gray()
    suspect = canon.attack(owner, GRAY, "mix-opseq", ratio=0.5, seed=1).model
    for change in (relative_noise(suspect, 0.2), pruned(suspect)):
        found = canon.locate(change, canon.register(owner, GRAY, robust=True, seed=0) if by_key else owner, GRAY)
        assert found.answer == "derived"
        assert found.coverage >= (0.95 if by_key else 0.99)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_short_rows_of_a_stranger_are_not(seed: int) -> None:
    found = canon.locate(gray(seed), gray(), GRAY)
    assert found.answer == "unrelated"
    assert found.coverage <= 0.02


def test_what_is_beyond_chance_together() -> None:
    bar, channels = Bar(dimension=7.0, channels=24, least=0.0), torch.arange(24)
    copied = torch.linspace(0.98, 0.995, 24, dtype=torch.float64)
    assert int((copied >= bar.cosine).sum()) < 12
    assert bool(bar.together(copied).all())
    few = torch.where(channels < 8, copied, 0.7)  # some are like anybody's
    assert not bool(bar.together(few).any())
    assert not bool(Bar(7.0, 24, least=0.999).together(copied).any())
    random = torch.nn.functional.normalize(torch.randn(48, 7, generator=torch.Generator().manual_seed(0)), dim=1)
    assert not bool(bar.together((random[:24] @ random[24:].T).amax(dim=1).double()).any())


@pytest.mark.parametrize("far", [0.03, 0.06, 0.075, 0.09, 0.12, 0.2])
def test_no_limit_cuts_between_two_that_cancel(far: float) -> None:
    """A channel, a copy of it, and two that are about as far from it as each other."""
    distance = torch.tensor([0.02, 0.024, far, far * 1.1], dtype=torch.float64)
    none = torch.zeros(4, dtype=torch.float64)
    pairs = Pairs(torch.zeros(4, dtype=torch.int64), 1 - distance, none, none.bool())
    match = accept(pairs, torch.zeros(1, dtype=torch.int64), Bar(64.0, 1, 0.0), 0.6).match
    assert match[:2].tolist() == [0, 0]
    assert match[2] == match[3]
    assert match[2] == {0.03: 0, 0.06: 0, 0.12: -1, 0.2: -1}.get(far, match[2])


def with_decoys(net: nn.Sequential, cosine: float, seed: int = 1) -> nn.Sequential:
    """Behind each layer but the last pairs of units like the owner's, whose columns cancel."""
    net, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    for first, second in itertools.pairwise(linear):
        count = first.out_features // 4
        rows = first.weight[:count].detach()
        noise = torch.randn(rows.shape, generator=generator) * rows.square().mean(dim=1, keepdim=True).sqrt()
        rows = rows + noise * (1 / cosine**2 - 1) ** 0.5
        columns = second.weight.detach().std() * torch.randn(second.out_features, count, generator=generator)
        _set(first, torch.cat([first.weight, rows, rows]), torch.cat([first.bias, *[first.bias[:count]] * 2]))
        _set(second, torch.cat([second.weight, columns, -columns], dim=1), second.bias)
    return net


def _set(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    layer.weight, layer.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
    layer.out_features, layer.in_features = weight.shape


@pytest.mark.parametrize(("cosine", "by_key"), [(0.9, False), (0.97, False), (0.9, True)])
def test_decoys_with_noise(cosine: float, by_key: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        owner = nn.Sequential(
            nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10)
        ).eval()  # fmt: skip
    example = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    larger = with_decoys(owner, cosine)
    torch.testing.assert_close(larger(example), owner(example))
    suspect = relative_noise(canon.attack(larger, example, "nso_zero", ratio=0.1, seed=2).model, 0.2)
    reference = canon.register(owner, example, robust=True, seed=0) if by_key else owner
    found = canon.locate(suspect, reference, example)
    assert found.answer == "derived", found.reason
    assert found.coverage >= 0.99
