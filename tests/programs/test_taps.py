"""Entries of kernels that only ever meet padding at the input size that is given: they may hold anything."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import canon
from canon.api import check_evidence
from canon.normal import idle_taps, without_idle_taps


def deep(seed: int = 0) -> nn.Sequential:
    """Kernels of 3x3 over one position."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for before, width, stride in ((3, 24, 2), (24, 32, 2), (32, 28, 2), (28, 30, 1)):
            layers += [nn.Conv2d(before, width, 3, stride=stride, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(30, 5)).double().eval()


EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_masks_say_what_never_meets_the_input() -> None:
    model = deep()
    idle = idle_taps(model, EXAMPLE)
    assert list(idle) == ["4", "6"]
    assert int(idle["6"].sum()) == 8
    noisy = copy.deepcopy(model)
    with torch.no_grad():
        for name, mask in idle.items():
            weight: Any = noisy.get_submodule(name).weight
            weight.add_(mask * torch.randn_like(weight))
        assert torch.equal(noisy(EXAMPLE), model(EXAMPLE))
        assert not torch.equal(noisy(torch.randn(1, 3, 24, 24).double()), model(torch.randn(1, 3, 24, 24).double()))
    for one, two in zip(
        without_idle_taps(noisy, idle).parameters(), without_idle_taps(model, idle).parameters(), strict=True
    ):
        assert torch.equal(one, two)


def test_they_are_left_out_where_they_alone_keep_networks_apart() -> None:
    owner = deep()
    suspect = canon.attack(owner, EXAMPLE, "mix-opseq", ratio=0.2, seed=1).model
    with torch.no_grad():
        for name, mask in idle_taps(suspect, EXAMPLE).items():
            weight: Any = suspect.get_submodule(name).weight
            weight.add_(mask * torch.randn_like(weight))
    found = canon.judge(suspect, EXAMPLE, reference=owner)
    assert found.answers.network.answer == "contained", found.answers.network.reason
    assert "only meet padding" in found.answers.network.reason
    check_evidence(found.evidence)


def test_another_networks_taps_are_no_excuse() -> None:
    found = canon.judge(deep(seed=4), EXAMPLE, reference=deep())
    assert found.answers.network.answer in ("unrelated", "not decided")
