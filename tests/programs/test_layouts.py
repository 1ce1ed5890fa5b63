"""Channels first and last: norms that the owner writes out, layers of one position, and batches that are written in."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import canon


class Norm(nn.Module):
    """A layer norm over channels in primitives, as ConvNeXt has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(1 + 0.3 * torch.randn(width)), nn.Parameter(0.3 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        off = x - x.mean(1, keepdim=True)
        x = off / torch.sqrt(off.pow(2).mean(1, keepdim=True) + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Net(nn.Module):
    """A block of ConvNeXt behind such a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 16, 2, 2), Norm(16)
        self.depth, self.norm = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.LayerNorm(16)
        self.wide, self.narrow = nn.Linear(16, 40), nn.Linear(40, 16)
        self.gain, self.fc = nn.Parameter(torch.rand(16) + 0.3), nn.Linear(16, 5)
        self.token = nn.Parameter(torch.randn(1, 1, 16))

    def begin(self, x: Tensor) -> Tensor:
        return self.first(self.stem(x))  # type: ignore[no-any-return]

    def block(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + (self.gain * self.narrow(F.gelu(self.wide(y)))).permute(0, 3, 1, 2)  # type: ignore[no-any-return]

    def head(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], 1)
        return self.fc(tokens.mean(1))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.begin(x)))


def norm_as_function(net: Net, x: Tensor) -> Tensor:
    x = net.stem(x).permute(0, 2, 3, 1)
    return F.layer_norm(x, (x.shape[-1],), net.first.weight, net.first.bias, 1e-6).permute(0, 3, 1, 2)


def convolutions(net: Net, x: Tensor) -> Tensor:
    y = net.norm(net.depth(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    y = F.gelu(F.conv2d(y, net.wide.weight[:, :, None, None], net.wide.bias))
    return x + net.gain[:, None, None] * F.conv2d(y, net.narrow.weight[:, :, None, None], net.narrow.bias)


def gain_outside(net: Net, x: Tensor) -> Tensor:
    y = net.norm(net.depth(x).permute(0, 2, 3, 1))
    return x + net.narrow(F.gelu(net.wide(y))).permute(0, 3, 1, 2) * net.gain[None, :, None, None]  # type: ignore[no-any-return]


def batch_written_in(net: Net, x: Tensor) -> Tensor:
    tokens = torch.cat([net.token.expand(2, -1, -1), x.flatten(2).transpose(1, 2)], 1)
    return net.fc(tokens.sum(1) / 17)  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "begin: function": norm_as_function, "block: convolutions": convolutions, "block: gain outside": gain_outside,
    "head: batch written in": batch_written_in,
}  # fmt: skip


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("name", WAYS)
def test_the_same_network_in_another_layout(name: str, by_key: bool) -> None:
    given = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mine = Net().eval()
    hidden = canon.attack(mine, given, "mix-opseq", ratio=0.2, seed=1).model
    suspect: nn.Module = copy.deepcopy(hidden)
    place, way = name.partition(":")[0], WAYS[name]
    suspect.__class__ = type("Other", (Net,), {place: lambda self, x: way(self, x)})
    with torch.no_grad():
        assert torch.allclose(suspect(given), hidden(given), atol=1e-5)
    anchor: dict[str, Any] = {"layout_key": canon.register(mine, given)} if by_key else {"reference": mine}
    found = canon.judge(suspect, given, **anchor).answers.network
    assert found.answer in ("equal", "contained"), found.reason


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_parts_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 4))))
    with pytest.raises(canon.errors.TraceError, match=r"TorchScript.*\(at 1\)"):
        canon.judge(model.eval(), torch.randn(2, 4), reference=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval())
