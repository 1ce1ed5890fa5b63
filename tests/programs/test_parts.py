"""Layers with their norms and functions written as several that stand side by side or are added up."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import canon
from tests.programs.small import drawn, network


class Net(nn.Module):
    """Two layers with norms, and a norm behind a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.two, self.norm2 = nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.three, self.norm3, self.fc = nn.Conv2d(16, 10, 1), nn.BatchNorm2d(26), nn.Linear(26, 5)

    def pair(self, x: Tensor) -> Tensor:
        return self.norm2(self.two(torch.relu(self.norm1(self.one(x)))))  # type: ignore[no-any-return]

    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(self.norm3(torch.cat([x, y], 1))).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.pair(x))
        return self.fc(self.joined(x, self.three(x)))  # type: ignore[no-any-return]


def normed(norm: Any, x: Tensor, start: int, width: int) -> Tensor:
    at = slice(start, start + width)
    return F.batch_norm(x, norm.running_mean[at], norm.running_var[at], norm.weight[at], norm.bias[at], eps=norm.eps)


def side_by_side(net: Net, x: Tensor) -> Tensor:
    parts = [F.conv2d(x, net.one.weight[at], padding=1) for at in (slice(0, 5), slice(5, None))]
    x = torch.cat([torch.relu(normed(net.norm1, part, 5 * at, 5 + 99 * at)) for at, part in enumerate(parts)], 1)
    return net.norm2(net.two(x))  # type: ignore[no-any-return]


def halves(net: Net, x: Tensor) -> Tensor:
    total: Any = 0
    for start, at in ((0, slice(0, 5)), (5, slice(5, None))):
        part = torch.relu(normed(net.norm1, F.conv2d(x, net.one.weight[at], padding=1), start, 5 + start * 99))
        total = total + F.conv2d(part, net.two.weight[:, at], net.two.bias if start else None, padding=1)
    return net.norm2(total)  # type: ignore[no-any-return]


class Beside(nn.Module):
    """A kernel as three branches with norms of their own, one of which reads the value itself."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        rows, columns = layer.weight.shape[:2]
        self.few, self.three = nn.Conv2d(columns, rows, 1, bias=False), nn.Conv2d(columns, rows, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(rows) for _ in range(3))
        drawn(self, 4)
        gains = [n.weight / torch.sqrt(n.running_var + n.eps) for n in self._norms()]
        offsets = [n.bias - n.running_mean * gain for n, gain in zip(self._norms(), gains, strict=True)]
        with torch.no_grad():
            itself = torch.diag(gains[0])[:, :, None, None] + self.few.weight * gains[1][:, None, None, None]
            rest = layer.weight - F.pad(itself, (1, 1, 1, 1))
            self.three.weight.copy_(rest / gains[2][:, None, None, None])
            assert self.three.bias is not None
            self.three.bias.copy_((layer.bias - sum(offsets)) / gains[2])

    def _norms(self) -> list[Any]:
        return list(self.norms)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self._norms()
        result: Tensor = first(x) + second(self.few(x)) + third(self.three(x))
        return result


def norms_of_parts(net: Net, x: Tensor, y: Tensor) -> Tensor:
    width = len(net.two.weight)
    parts = [torch.relu(normed(net.norm3, x, 0, width)), torch.relu(normed(net.norm3, y, width, 99))]
    return torch.cat([part.mean((2, 3)) for part in parts], 1)


WAYS: dict[str, Callable[..., Tensor]] = {
    "pair: side by side": side_by_side, "pair: halves": halves,
    "joined: norms of parts": norms_of_parts,
}  # fmt: skip


def example() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def written(name: str, model: nn.Module) -> nn.Module:
    place, way = name.partition(":")[0], WAYS[name]
    made: nn.Module = copy.deepcopy(model)
    made.__class__ = type("Other", (Net,), {place: lambda self, *x: way(self, *x)})
    return made


@pytest.mark.parametrize("name", WAYS)
def test_layers_of_parts_are_one(name: str) -> None:
    mine, given = network(kind=Net), example()
    hidden = canon.attack(mine, given, "mix-opseq", ratio=0.2, seed=1).model
    suspect = written(name, hidden)
    with torch.no_grad():
        assert torch.allclose(suspect(given), hidden(given))
    anchors: tuple[dict[str, Any], ...] = ({"reference": mine}, {"layout_key": canon.register(mine, given)})
    for anchor in anchors:
        found = canon.judge(suspect, given, **anchor).answers.network
        assert found.answer in ("equal", "contained"), found.reason


@pytest.mark.parametrize("name", WAYS)
def test_another_networks_parts_are_not_the_owners(name: str) -> None:
    found = canon.judge(written(name, network(seed=3, kind=Net)), example(), reference=network(kind=Net))
    assert found.answers.network.answer in ("unrelated", "not decided")


def test_a_kernel_with_norms_beside_is_one() -> None:
    def square() -> nn.Module:
        layers = (nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(12 * 36, 5))

    mine: Any = network(kind=square)
    beside = Beside(mine[2])
    theirs = nn.Sequential(*mine[:2], beside, *mine[3:]).double().eval()
    with torch.no_grad():
        assert torch.allclose(theirs(example()), mine(example()))
    assert canon.judge(theirs, example(), reference=mine).answers.network.answer == "equal"
    # An owner that has such branches keeps them.
    shell = nn.Sequential(nn.Identity(), copy.deepcopy(theirs)).eval()
    assert canon.judge(shell, example(), reference=theirs).answers.network.answer in ("equal", "contained")
