"""Channels that were replaced by others that together give them, and the attacks that leave rows where they were."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import canon
from canon.containment import refit as refitting
from tests.containment.disguises import chain, images, widen
from tests.verify.small import example, tiny

KEPT = ("dead_range", "odd_group", "entangled", "tiny_column", "noisy_clique")


@pytest.mark.parametrize("op", KEPT)
def test_what_is_added_beside_the_rows_is_left_out(op: str) -> None:
    net, inputs = chain(), images()
    suspect = canon.attack(net, inputs, [op], ratio=0.3, seed=1).model
    found = canon.locate(suspect, net, inputs)
    assert found.coverage == 1.0
    assert found.answer == "contained", found.reason
    assert not found.refitted


@pytest.mark.parametrize("seed", range(3))
def test_replaced_channels_come_from_their_mirror_images(seed: int) -> None:
    net, inputs = chain(seed), images()
    suspect = canon.attack(net, inputs, ["odd_replace"], ratio=0.3, seed=seed).model
    found = canon.locate(suspect, net, inputs)
    assert found.coverage == 1.0
    assert found.answer == "contained", found.reason
    assert not found.refitted, "what reads an image reads the channel"
    assert found.agreement is not None
    assert found.agreement.difference < 1e-5


def test_images_that_were_split_add_up() -> None:
    net, inputs = chain(), images()
    suspect = canon.attack(net, inputs, ["odd_replace", "nso_split"], ratio=0.3, seed=2, split_shares="random").model
    found = canon.locate(suspect, net, inputs)
    assert found.answer == "contained", found.reason


@pytest.mark.parametrize("function", [nn.GELU, nn.SiLU, nn.Hardswish, nn.LeakyReLU])
def test_images_of_functions_whose_odd_part_is_a_line(function: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 32), function(), nn.Linear(32, 24), function(), nn.Linear(24, 5)).eval()
    inputs = torch.randn(1, 12)
    suspect = canon.attack(net, inputs, ["odd_replace"], ratio=0.3, seed=0).model
    found = canon.locate(suspect, net, inputs)
    assert found.answer == "contained", found.reason


def test_replaced_channels_behind_norms() -> None:
    net, inputs = tiny(0, 24), example()
    suspect = canon.attack(net, inputs, ["odd_replace"], ratio=0.3, seed=1).model
    for owner in (net, canon.register(net, inputs, robust=True)):
        assert canon.locate(suspect, owner, inputs).answer == "contained"


def with_near_copies(net: nn.Sequential, share: float = 0.6, noise: float = 0.15) -> nn.Sequential:
    """Most of what a channel of the second layer gives comes from one that is nearly the same."""
    net, generator = copy.deepcopy(net), torch.Generator().manual_seed(0)
    first, second = net[2], net[4]
    assert isinstance(first, nn.Conv2d)
    assert isinstance(second, nn.Conv2d)
    assert first.bias is not None
    spread = noise * first.weight.std() * torch.randn(first.weight.shape, generator=generator, dtype=torch.float64)
    columns = share * second.weight.detach()
    with torch.no_grad():
        second.weight.mul_(1 - share)
    return widen(net, 2, first.weight.detach() + spread, first.bias.detach(), columns)


def test_what_near_copies_carry_is_refitted() -> None:
    net, inputs = chain(), images()
    suspect = with_near_copies(net)
    found = canon.locate(suspect, net, inputs)
    assert found.answer == "derived", "what was computed is not what was found"
    assert found.coverage >= 0.99
    assert found.refitted
    assert found.to_dict()["refitted"] == list(found.refitted)
    assert found.median is not None
    assert found.median < 0.1, "rows and columns are nearly the owner's"


def test_nothing_is_refitted_in_a_stranger() -> None:
    suspect = canon.attack(chain(5), images(), ["odd_replace"], ratio=0.3, seed=1).model
    found = canon.locate(suspect, chain(), images())
    assert found.answer == "unrelated"
    assert not found.refitted


def test_least_squares_need_more_samples_than_channels() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(40, 10, generator=generator, dtype=torch.float64)
    table = torch.randn(3, 10, generator=generator, dtype=torch.float64)
    fit = refitting._least_squares(y @ table.T + 1.0, y)
    assert fit is not None
    assert torch.allclose(fit, table, atol=1e-6)
    assert refitting._least_squares(y[:15] @ table.T, y[:15]) is None


def test_layers_that_read_rows_of_all_inputs_at_once_are_seen() -> None:
    """A router reads positions of all sequences as rows of a matrix, and is no nn.Linear."""

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight)

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.router = nn.Linear(2, 4), Router()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.router(self.first(x).reshape(-1, 4))
            return out

    model, x = Routed().eval(), torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(0))
    seen = refitting.entering(model, canon.trace(model, x).maps, (x,))
    assert {name: tuple(values.shape) for name, values in seen.items()} == {
        "first.weight": (10, 2, 1), "router.weight": (10, 4, 1)
    }  # fmt: skip
