"""Gains and offsets that were moved into other layers, with the program as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import canon
from canon.verify import LayoutKey
from tests.preservation import randomize

TOKENS = torch.randn(1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(1, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """A residual stream that a layer norm and a norm of lengths read."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.last = nn.Linear(8, 20), nn.LayerNorm(20), nn.RMSNorm(20)
        self.up, self.down, self.head = nn.Linear(20, 28), nn.Linear(28, 20), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        """The whole network."""
        x = self.embed(x)
        x = x + self.down(functional.gelu(self.up(self.norm(x))))
        result: Tensor = self.head(self.last(x)).mean(1)
        return result


class Images(nn.Module):
    """A norm that a 1x1 kernel alone reads, and two layers one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.wide, self.narrow = nn.Conv2d(16, 24, 1), nn.Conv2d(24, 12, 1)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        """The whole network."""
        x = torch.relu(self.narrow(self.wide(self.norm(self.stem(x)))))
        result: Tensor = self.head(x.mean((2, 3)))
        return result


@torch.no_grad()
def _gains(model: Any) -> None:
    model.norm.bias.div_(model.norm.weight)
    for norm, layer in ((model.norm, model.up), (model.last, model.head)):
        layer.weight.mul_(norm.weight)
        norm.weight.fill_(1.0)


@torch.no_grad()
def _offset(model: Any) -> None:
    model.up.bias.add_(model.up.weight @ model.norm.bias)
    model.norm.bias.zero_()


def _both(model: Any) -> None:
    _offset(model)
    _gains(model)


@torch.no_grad()
def _through(model: Any) -> None:
    model.wide.bias.add_(model.wide.weight[:, :, 0, 0] @ model.norm.bias)
    model.norm.bias.zero_()
    model.narrow.bias.add_(model.narrow.weight[:, :, 0, 0] @ model.wide.bias)
    model.wide.bias.zero_()


CASES: dict[str, tuple[Callable[[], nn.Module], Tensor, Callable[[Any], None]]] = {
    "gains": (Block, TOKENS, _gains),
    "offset": (Block, TOKENS, _offset),
    "gains and offset": (Block, TOKENS, _both),
    "offsets through layers": (Images, IMAGES, _through),
}


@cache
def _owner(kind: Callable[[], nn.Module]) -> nn.Module:
    return randomize(kind())


@cache
def _key(kind: Callable[[], nn.Module]) -> LayoutKey:
    return canon.register(_owner(kind), TOKENS if kind is Block else IMAGES)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_moved_gains_and_offsets_are_the_owners(case: str, hidden: bool) -> None:
    kind, example, move = CASES[case]
    owner, suspect = _owner(kind), copy.deepcopy(_owner(kind))
    move(suspect)
    assert torch.allclose(suspect(example), owner(example))
    assert any(not torch.equal(a, b) for a, b in zip(suspect.parameters(), owner.parameters(), strict=True))
    suspect = canon.attack(suspect, example, "mix-opseq", ratio=0.2).model if hidden else suspect
    for given in ({"reference": owner}, {"layout_key": _key(kind)}):
        assert canon.judge(suspect, example, **given).answers.network.answer == "equal"


@pytest.mark.parametrize("kind", [Block, Images])
def test_an_offset_that_is_not_taken_up_is_a_difference(kind: Callable[[], nn.Module]) -> None:
    example, suspect = TOKENS if kind is Block else IMAGES, copy.deepcopy(_owner(kind))
    with torch.no_grad():
        suspect.norm.bias.mul_(1.05)  # type: ignore[union-attr, operator]
    for given in ({"reference": _owner(kind)}, {"layout_key": _key(kind)}):
        assert canon.judge(suspect, example, **given).answers.network.answer != "equal"
