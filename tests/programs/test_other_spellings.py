"""Layers and norms that a program writes in other ways: the same numbers, found again; and neighbours that differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import canon


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 14, 3, padding=1)
        self.norm, self.fc = nn.LayerNorm(14), nn.Linear(14, 5)

    def middle(self, x: Tensor) -> Tensor:
        return self.two(x)  # type: ignore[no-any-return]

    def normed(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # type: ignore[no-any-return]

    def head(self, x: Tensor) -> Tensor:
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.normed(self.middle(torch.relu(self.one(x))))))


def offset(net: Net) -> Tensor:
    assert net.two.bias is not None
    return net.two.bias


def nine_shifts(net: Net, x: Tensor, factor: float) -> Tensor:
    padded = functional.pad(x, (1, 1, 1, 1))
    total = offset(net)[:, None, None]
    for i in range(3):
        for j in range(3):
            kernel = net.two.weight[:, :, i : i + 1, j : j + 1] * (factor if i == j else 1)
            total = total + functional.conv2d(padded[:, :, i : i + 8, j : j + 8], kernel)
    return total


def channels_last(net: Net, x: Tensor, factor: float) -> Tensor:
    windows = functional.unfold(x, 3, padding=1).transpose(1, 2)
    flat = windows @ (net.two.weight.flatten(1).t() * factor) + offset(net)
    made: Tensor = flat.transpose(1, 2).unflatten(2, (8, 8))
    return made


def written_out(net: Net, x: Tensor, factor: float) -> Tensor:
    off = x - x.mean(1, keepdim=True)
    scale = torch.sqrt(off.pow(2).mean(1, keepdim=True) + net.norm.eps + (factor - 1))
    return net.norm.weight[:, None, None] * (off / scale) + net.norm.bias[:, None, None]


def einsum_head(net: Net, x: Tensor, factor: float) -> Tensor:
    return torch.einsum("nchw,oc->no", x, net.fc.weight * factor) / 64 + net.fc.bias


CHANGES = {"middle": (nine_shifts, channels_last), "normed": (written_out,), "head": (einsum_head,)}
CASES = [(place, change) for place, changes in CHANGES.items() for change in changes]


def judged(place: str, change: Callable[[Net, Tensor, float], Tensor], factor: float, by_key: bool) -> str:
    class Other(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    setattr(Other, place, lambda self, x: change(self, x, factor))
    torch.manual_seed(0)
    owner = Net().eval()
    with torch.no_grad():
        for tensor in (owner.norm.weight, owner.norm.bias):
            tensor.add_(torch.randn(14) * 0.3)
    example = torch.randn(2, 3, 8, 8)
    suspect = canon.attack(owner, example, "mix-opseq", ratio=0.2, seed=1).model
    suspect.__class__ = Other
    given = {"layout_key": canon.register(owner, example)} if by_key else {"reference": owner}
    found = canon.judge(suspect, example, **given)
    return str(found.answers.network.answer)


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize(("place", "change"), CASES)
def test_the_same_layer_in_other_words(
    place: str, change: Callable[[Net, Tensor, float], Tensor], by_key: bool
) -> None:
    assert judged(place, change, 1.0, by_key) in ("equal", "contained")


@pytest.mark.parametrize(("place", "change"), CASES)
def test_a_neighbour_is_not_the_same(place: str, change: Callable[[Net, Tensor, float], Tensor]) -> None:
    assert judged(place, change, 1.3, False) not in ("equal", "contained")
