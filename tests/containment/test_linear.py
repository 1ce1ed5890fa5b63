"""Linear spaces, in which a channel may be any sum of others: replaced channels, mixed bases, widened bases."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import canon
from canon.containment.linear import linear_terms
from canon.describe import Parameters
from canon.describe.curves import Curves
from canon.graph.experts import channel_tensors
from canon.verify import register
from tests.verify.small import disguise


class Bottleneck(nn.Module):
    """Expanded, filtered channel by channel, and brought back without an activation."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        wide = 4 * before
        self.expand, self.norm1 = nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.filter, self.norm2 = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide)
        self.project, self.norm3 = nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu6(self.norm1(self.expand(x)))
        inner = functional.relu6(self.norm2(self.filter(inner)))
        result: Tensor = self.norm3(self.project(inner))
        return x + result if x.shape == result.shape else result


def bottlenecks(seed: int = 0) -> nn.Sequential:
    """A stem, two streams without activations (a bottleneck each that opens it, and one beside it), a head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU()),
            Bottleneck(24, 16), Bottleneck(16, 16), Bottleneck(16, 24), Bottleneck(24, 24),
            nn.Sequential(nn.Conv2d(24, 96, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)),
        ).double()  # fmt: skip
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0.0, 0.3)
                nn.init.normal_(module.running_mean, 0.0, 0.3)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
        return net.eval()


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

STREAMS = (((1, 2), ("2.expand", "3.expand")), ((3, 4), ("4.expand", "5.0")))
"""Bottlenecks that write to a stream, and layers that read it."""


def mixed(owner: nn.Module, streams: Sequence[int], wider: int, seed: int = 0) -> nn.Module:
    """Streams in another basis, of more channels or as many: `y → A·y`, and `W → W·A⁺ + N` with `N·A = 0`."""
    copied = copy.deepcopy(owner)
    net: Any = copied
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    with torch.no_grad():
        for stream in streams:
            writers, readers = STREAMS[stream]
            width = net.get_submodule(f"{writers[0]}.project").out_channels
            basis = drawn(width + wider, width)
            back = torch.linalg.pinv(basis)
            for at in writers:
                layer, norm = net.get_submodule(f"{at}.project"), net.get_submodule(f"{at}.norm3")
                factor = norm.weight / (norm.running_var + norm.eps).sqrt()
                rows = basis @ (factor[:, None] * layer.weight.flatten(1))
                shift = basis @ (norm.bias - factor * norm.running_mean)
                layer.weight = nn.Parameter(rows[:, :, None, None])
                layer.out_channels = width + wider
                new: Any = nn.BatchNorm2d(width + wider, dtype=torch.float64).eval()
                new.bias.copy_(shift + new.weight * 0)
                new.running_var.fill_(1 - new.eps)
                net.get_submodule(str(at)).norm3 = new
            for name in readers:
                layer = net.get_submodule(name)
                rows = layer.weight.flatten(1)
                rows = rows @ back + 0.3 * rows.std() * drawn(len(rows), width + wider) @ (
                    torch.eye(width + wider, dtype=torch.float64) - basis @ back
                )
                layer.weight, layer.in_channels = nn.Parameter(rows[:, :, None, None]), width + wider
    return copied


def noisy(model: nn.Module, size: float) -> nn.Module:
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return other


@pytest.mark.parametrize("wider", [0, 5])
def test_the_attacker_changes_nothing(wider: int) -> None:
    owner = bottlenecks()
    torch.testing.assert_close(mixed(owner, (0, 1), wider)(IMAGES), owner(IMAGES), rtol=1e-9, atol=1e-9)


def test_what_is_linear() -> None:
    owner = bottlenecks()
    graph = canon.trace(owner, IMAGES)
    parameters = Parameters(graph, channel_tensors(owner))
    found = {space.name: linear_terms(space, parameters, Curves()) for space in graph.spaces}
    assert {name for name, terms in found.items() if terms} == {"1.project", "3.project"}
    assert sorted(len(terms) for terms in found["1.project"].values()) == [1, 2]  # writers before each reader


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("ratio", [0.2, 0.5])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_replaced_channels_are_read_from_what_replaced_them(by_key: bool, ratio: float, noise: float) -> None:
    owner = bottlenecks()
    suspect = noisy(canon.attack(owner, IMAGES, "odd_replace", ratio=ratio).model, noise)
    found = canon.locate(suspect, register(owner, IMAGES, robust=True, seed=1) if by_key else owner, IMAGES)
    assert found.coverage >= 0.99, found.reason
    assert found.answer == ("derived" if noise else "contained"), found.reason
    if not noise:
        assert found.model is not None
        torch.testing.assert_close(found.model(IMAGES), owner(IMAGES), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("streams", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(("wider", "noise"), [(0, 0.0), (5, 0.0), (0, 0.002), (5, 0.05)])
def test_a_mixed_basis_is_undone(streams: Sequence[int], wider: int, noise: float) -> None:
    owner = bottlenecks()
    suspect = disguise(mixed(owner, streams, wider), IMAGES, seed=3)
    found = canon.locate(noisy(suspect, noise), owner, IMAGES)
    assert found.coverage >= 0.99, found.reason
    assert found.answer == ("derived" if noise else "contained"), found.reason
    assert any(f"{len(streams)} linear spaces were sums" in note for note in found.notes)
    if not noise:
        assert found.model is not None
        torch.testing.assert_close(found.model(IMAGES), owner(IMAGES), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("wider", [0, 5])
def test_a_mixed_stranger_is_none_of_the_owner(seed: int, wider: int) -> None:
    owner = bottlenecks()
    found = canon.locate(mixed(bottlenecks(seed), (0, 1), wider), owner, IMAGES)
    assert found.answer == "unrelated", found.reason


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_stranger_with_the_owners_stem_is_not_unmixed(seed: int) -> None:
    owner, other = bottlenecks(), bottlenecks(seed)
    other[0].load_state_dict(owner[0].state_dict())
    found = canon.locate(other, owner, IMAGES)
    assert found.answer == "unrelated", found.reason


def test_by_a_key_a_mixed_basis_is_not_refuted() -> None:
    owner = bottlenecks()
    suspect = disguise(mixed(owner, (0, 1), 5), IMAGES)
    found = canon.locate(suspect, register(owner, IMAGES, robust=True), IMAGES)
    assert found.answer in ("derived", "not decided"), found.reason


def low_rank(seed: int = 0) -> nn.Sequential:
    """Layers that were split into two without an activation between them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = [nn.Linear(20, 64), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Linear(64, 16, bias=False), nn.Linear(16, 64), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(64, 10)).double().eval()


def rotated(model: nn.Sequential, seed: int = 5) -> nn.Sequential:
    """The same with every pair in another basis."""
    copied, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    net: Any = copied
    with torch.no_grad():
        for at in (2, 5, 8):
            basis = torch.randn(16, 16, generator=generator, dtype=torch.float64)
            net[at].weight.copy_(basis @ net[at].weight)
            net[at + 1].weight.copy_(net[at + 1].weight @ torch.linalg.inv(basis))
    return copied


ROWS = torch.randn(4, 20, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_layers_of_low_rank_in_another_basis() -> None:
    owner = low_rank()
    suspect = disguise(rotated(owner), ROWS)
    found = canon.locate(suspect, owner, ROWS)
    assert (found.answer, found.coverage) == ("contained", 1.0), found.reason
    by_key = canon.locate(suspect, register(owner, ROWS, robust=True), ROWS)
    assert by_key.answer == "not decided", by_key.reason


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_strangers_of_low_rank(seed: int) -> None:
    owner = low_rank()
    for anchor in (owner, register(owner, ROWS, robust=True)):
        found = canon.locate(rotated(low_rank(seed)), anchor, ROWS)
        assert found.answer in ("unrelated", "not decided"), found.reason  # narrow layers tell a key little
        assert found.coverage == 0
