"""Layers under other axes, weights that are computed or kept elsewhere, layers in another precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import canon


class Net(nn.Module):
    """A gate of two 1x1 convolutions, a depthwise kernel, a residual sum, and a head behind a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.depth, self.mix = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 16, 1)
        self.down, self.up = nn.Conv2d(16, 14, 1), nn.Conv2d(14, 16, 1)
        self.first, self.last = nn.Linear(16 * 9, 24), nn.Linear(24, 7)

    def begin(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.stem(x)))

    def deep(self, x: Tensor) -> Tensor:
        return self.depth(x)  # type: ignore[no-any-return]

    def gate(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))

    def head(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x.flatten(1))))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.begin(x), 2)
        return self.head(self.gate(F.relu(x + self.mix(F.relu(self.deep(x))))))


def linear_gate(net: Net, x: Tensor) -> Tensor:
    hidden = F.silu(F.linear(x.mean((2, 3)), net.down.weight.flatten(1), net.down.bias))
    return x * torch.sigmoid(F.linear(hidden, net.up.weight.flatten(1), net.up.bias))[:, :, None, None]


def gate_over_time(net: Net, x: Tensor) -> Tensor:
    hidden = F.silu(F.conv1d(x.flatten(2).mean(2, keepdim=True), net.down.weight[..., 0], net.down.bias))
    return x * torch.sigmoid(F.conv1d(hidden, net.up.weight[..., 0], net.up.bias))[..., None]


def convolved_head(net: Net, x: Tensor) -> Tensor:
    hidden = F.relu(F.conv2d(x, net.first.weight.view(len(net.first.weight), -1, 3, 3), net.first.bias))
    return F.conv2d(hidden, net.last.weight[:, :, None, None], net.last.bias).flatten(1)


def turned_head(net: Net, x: Tensor) -> Tensor:
    weight = net.first.weight.view(len(net.first.weight), -1, 3, 3).permute(0, 2, 3, 1).flatten(1)
    hidden = F.relu(F.linear(x.permute(0, 2, 3, 1).flatten(1), weight, net.first.bias))
    return net.last(hidden)  # type: ignore[no-any-return]


def contracted_head(net: Net, x: Tensor) -> Tensor:
    weight = net.first.weight.view(len(net.first.weight), -1, 3, 3)
    made = torch.tensordot(x, weight, dims=([1, 2, 3], [1, 2, 3])) + net.first.bias
    return net.last(F.relu(made))  # type: ignore[no-any-return]


def dense_depth(net: Net, x: Tensor) -> Tensor:
    weight = torch.diag_embed(net.depth.weight[:, 0].permute(1, 2, 0)).permute(2, 3, 0, 1)
    return F.conv2d(x, weight, net.depth.bias, padding=1)


def double_depth(net: Net, x: Tensor) -> Tensor:
    assert net.depth.bias is not None
    kernel, bias = net.depth.weight.double(), net.depth.bias.double()
    return F.conv2d(x.double(), kernel, bias, padding=1, groups=len(kernel)).float()


FORMS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "gate: linear": linear_gate, "gate: over time": gate_over_time, "head: convolved": convolved_head,
    "head: turned": turned_head, "head: contracted": contracted_head, "deep: dense": dense_depth,
    "deep: double": double_depth,
}  # fmt: skip


class OneVector(nn.Module):
    """All numbers of a network in one tensor."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        kept = {name: value for name, value in net.state_dict().items() if value.is_floating_point()}
        self.vector = nn.Parameter(torch.cat([value.flatten() for value in kept.values()]))
        self.shapes, self.inside = {name: value.shape for name, value in kept.items()}, [net]

    def forward(self, x: Tensor) -> Any:
        parts = self.vector.split([shape.numel() for shape in self.shapes.values()])
        given = {name: part.view(shape) for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)}
        return functional_call(self.inside[0], given, (x,))


def example() -> Tensor:
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def owner() -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net()
        for tensor in (net.norm.weight, net.norm.bias, net.norm.running_mean):
            assert tensor is not None
            nn.init.uniform_(tensor, 0.3, 1.2)
    return net.eval()


def suspect(name: str, hidden: Net) -> nn.Module:
    if name == "one vector":
        return OneVector(hidden).eval()
    if name == "exported":
        return torch.export.export(hidden, (example(),)).module()
    form = FORMS[name]

    class Other(Net):
        pass

    setattr(Other, name.partition(":")[0], form)
    made: nn.Module = copy.deepcopy(hidden)
    made.__class__ = Other
    return made


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, of exported modules that are copied
@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("name", [*FORMS, "one vector", "exported"])
def test_the_same_layer_in_another_form(name: str, by_key: bool) -> None:
    mine, given = owner(), example()
    hidden = canon.attack(mine, given, "mix-opseq", ratio=0.2, seed=1).model
    assert isinstance(hidden, Net)
    theirs = suspect(name, hidden)
    with torch.no_grad():
        assert torch.allclose(theirs(given), hidden(given), atol=1e-5)
    anchor: dict[str, Any] = {"layout_key": canon.register(mine, given)} if by_key else {"reference": mine}
    found = canon.judge(theirs, given, **anchor)
    assert found.answers.network.answer in ("equal", "contained"), found.answers.network.reason


@pytest.mark.parametrize("name", ["gate: linear", "head: convolved", "deep: dense"])
def test_another_layer_in_another_form(name: str) -> None:
    mine = owner()
    changed = copy.deepcopy(mine)
    with torch.no_grad():
        for layer in (changed.down, changed.first, changed.depth):
            layer.weight.mul_(1 + 0.3 * torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(3)))
    found = canon.judge(suspect(name, changed), example(), reference=mine)
    assert found.answers.network.answer not in ("equal", "contained")


def test_tensors_that_chance_decides_are_not_computed_once() -> None:
    class Noisy(Net):
        def deep(self, x: Tensor) -> Tensor:
            weight = F.dropout(self.depth.weight, 0.5, True)
            return F.conv2d(x, weight, self.depth.bias, padding=1, groups=len(weight))

    noisy = copy.deepcopy(owner())
    noisy.__class__ = Noisy
    assert canon.judge(noisy, example(), reference=owner()).answers.network.answer not in ("equal", "contained")
