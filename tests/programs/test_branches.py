"""One layer written as several that are added up: adapters beside it, and parts that read stretches of its input."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import canon
from canon.normal.branches import cut_of
from canon.normal.lower import lower
from tests.containment.disguises import chain, images

CONVOLUTION = 2
"""The place of a convolution in `chain` that is not the first."""


class Adapted(nn.Module):
    """A layer with a low-rank adapter beside it, which it makes up for; with `scaling`, as adapters have it."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.scaling = layer, 0.5
        down: Any = nn.Linear(layer.in_features, 3, bias=False, dtype=layer.weight.dtype)
        up: Any = nn.Linear(3, layer.out_features, bias=False, dtype=layer.weight.dtype)
        self.down, self.up = down, up
        with torch.no_grad():
            layer.weight.sub_(self.scaling * up.weight @ down.weight)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) + self.up(self.down(x)) * self.scaling
        return result


class AdaptedConvolution(nn.Module):
    """The same for a convolution."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        kind = {"dtype": layer.weight.dtype, "bias": False}
        self.down = nn.Conv2d(layer.in_channels, 3, layer.kernel_size, layer.stride, layer.padding, **kind)
        self.up = nn.Conv2d(3, layer.out_channels, 1, **kind)
        with torch.no_grad():
            layer.weight.sub_(torch.einsum("or,r...->o...", self.up.weight[:, :, 0, 0], self.down.weight))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) + self.up(self.down(x))
        return result


class InParts(nn.Module):
    """A convolution that reads its input in two halves."""

    def __init__(self, layer: Any, cut: Callable[[Tensor, int], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.cut, self.at = cut, layer.in_channels // 2
        sizes = (self.at, self.at)
        self.parts = nn.ModuleList(
            nn.Conv2d(n, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, dtype=layer.weight.dtype)
            for n in sizes
        )
        one: Any
        with torch.no_grad():
            for one, weight in zip(self.parts, layer.weight.split(sizes, 1), strict=True):
                one.weight.copy_(weight)
                one.bias.copy_(layer.bias / 2)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.cut(x, self.at)
        result: Tensor = self.parts[0](first) + self.parts[1](second)
        return result


CUTS: dict[str, Callable[[Tensor, int], Any]] = {
    "slices": lambda x, at: (x[:, :at], x[:, at:]),
    "from the end": lambda x, at: (x[:, :-at], x[:, -at:]),
    "narrow": lambda x, at: (x.narrow(1, 0, at), x.narrow(1, at, at)),
    "split": lambda x, at: x.split([at, at], dim=1),
    "chunks": lambda x, at: x.chunk(2, 1),
}


def _instead(make: Callable[[Any], nn.Module], at: int) -> Callable[[], nn.Module]:
    def suspect() -> nn.Module:
        model: Any = copy.deepcopy(canon.attack(chain(), images(), "nso_clique", ratio=0.5, seed=1).model)
        model[at] = make(model[at])
        return nn.Sequential(*model).eval()

    return suspect


SUSPECTS = {
    "adapter": _instead(Adapted, -1),
    "adapted convolution": _instead(AdaptedConvolution, CONVOLUTION),
    **{name: _instead(partial(InParts, cut=cut), CONVOLUTION) for name, cut in CUTS.items()},
}


@pytest.mark.parametrize("name", SUSPECTS)
def test_a_layer_written_as_several_is_one(name: str) -> None:
    torch.manual_seed(0)
    owner, inputs, suspect = chain(), images(), SUSPECTS[name]()
    with torch.no_grad():
        assert torch.allclose(suspect(inputs), owner(inputs)), "the same function"
    by_reference = canon.judge(suspect, inputs, reference=owner).answers.network
    assert by_reference.answer in ("equal", "contained"), by_reference.reason
    by_key = canon.judge(suspect, inputs, layout_key=canon.register(owner, inputs)).answers.network
    assert by_key.answer in ("equal", "contained"), by_key.reason


class Both(nn.Module):
    """Whose own program has an adapter."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first, self.layer, self.down = nn.Linear(12, 30), nn.Linear(30, 24), nn.Linear(30, 4, bias=False)
            self.up, self.head = nn.Linear(4, 24, bias=False), nn.Linear(24, 5)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        result: Tensor = self.head(torch.relu(self.layer(x) + self.up(self.down(x))))
        return result


def test_an_owner_with_adapters_keeps_them() -> None:
    inputs = torch.randn(3, 12, dtype=torch.float64)
    suspect = nn.Sequential(canon.attack(Both(0), inputs, "nso_clique", ratio=0.3, seed=1).model, nn.Identity()).eval()
    found = canon.judge(suspect, inputs, reference=Both(0)).answers.network
    assert found.answer == "equal", found.reason
    assert canon.judge(Both(1), inputs, reference=Both(0)).answers.network.answer in ("unrelated", "not decided")


@pytest.mark.parametrize("name", CUTS)
def test_what_a_cut_is_of(name: str) -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            one, two = CUTS[name](x, 3)
            result: Tensor = one.sum() + two.sum()
            return result

    graph = lower(Cut(), torch.zeros(2, 6, 4, 4))
    found = [cut for node in graph.order if (cut := cut_of(node)) is not None]
    assert [(cut.axis, cut.start, cut.length) for cut in found] == [(1, 0, 3), (1, 3, 3)]
    assert all(cut.source is graph.inputs[0] for cut in found)


@pytest.mark.parametrize("index", ["[:, ::2]", "[:, 0]", "[0]", "[:2, :2]", "[:, [0, 1]]", "[..., 0:2]", "[None]"])
def test_what_is_no_cut(index: str) -> None:
    class Other(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = eval(f"x{index}", {}, {"x": x})
            return result

    graph = lower(Other(), torch.zeros(4, 6, 4, 4))
    assert [cut_of(node) for node in graph.order if node.kind == "call"] == [None]
