"""Layers that are not called: their tensors are handed to a function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import canon
from tests.networks import Net


def owner(functional: bool) -> nn.Module:
    """Two linear layers, the second of them called or not."""

    def forward(net: Any, x: Tensor) -> Any:
        hidden = F.relu(net.first(x))
        return F.linear(hidden, net.second.weight, net.second.bias) if functional else net.second(hidden)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net(forward, first=nn.Linear(24, 96), second=nn.Linear(96, 40)).eval()


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("by_key", [False, True])
def test_a_layer_and_its_function_are_one(functional: bool, by_key: bool) -> None:
    example = torch.randn(4, 24, generator=torch.Generator().manual_seed(1))
    mine, theirs = owner(functional), canon.attack(owner(not functional), example, ["nso_split"], ratio=0.3).model
    anchor = {"layout_key": canon.register(mine, example)} if by_key else {"reference": mine}
    found = canon.judge(theirs, example, **anchor)
    assert found.answers.network.answer == "equal", found.answers.network


def test_a_function_with_tensors_of_two_layers_is_no_layer() -> None:
    """The bias of one and the weight of another: the network is another one."""
    example = torch.randn(4, 24, generator=torch.Generator().manual_seed(1))
    mine = owner(False)

    def forward(net: Any, x: Tensor) -> Any:
        return F.linear(F.relu(net.first(x)), net.second.weight, net.other.bias)

    parts = dict(mine.named_children())
    theirs = Net(forward, **parts, other=nn.Linear(96, 40)).eval()
    assert canon.judge(theirs, example, reference=mine).answers.network.answer != "equal"
