"""A layer that a thief replaced: what stands behind it is still the owner's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import canon
from canon.containment.owner import Owner
from canon.verify import register
from tests.containment.disguises import relative_noise
from tests.verify.small import disguise


class Block(nn.Module):
    """Two convolutions with norms beside a path of their own."""

    def __init__(self, before: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.beside = nn.Identity() if stride == 1 else nn.Conv2d(before, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.beside(x))


def residual(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), Block(24, 24), Block(24, 48, 2), Block(48, 48),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
        ).eval()  # fmt: skip


def redrawn(model: nn.Module, name: str) -> nn.Module:
    """A copy with other weights in one layer."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        weight = other.get_parameter(f"{name}.weight")
        weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(4)) * weight.std())
    return other


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("name", ["2.conv2", "3.conv1", "4.conv2"])
def test_one_layer_of_a_disguised_copy_was_replaced(name: str, by_key: bool) -> None:
    owner = residual()
    suspect = disguise(redrawn(owner, name), IMAGES)
    found = canon.locate(suspect, register(owner, IMAGES, robust=True) if by_key else owner, IMAGES)
    assert found.answer == "derived", found.reason
    assert found.coverage >= 0.7


@pytest.mark.parametrize("by_key", [False, True])
def test_the_first_layer_was_replaced(by_key: bool) -> None:
    owner = residual()
    anchor = {"layout_key": register(owner, IMAGES, robust=True)} if by_key else {"reference": owner}
    found = canon.judge(redrawn(owner, "0"), IMAGES, **anchor)
    assert found.answers.network.answer == "derived", found.answers.network
    assert found.verdict.kind == "matches"


def plain(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, 64),
            nn.ReLU(), nn.Linear(64, 10),
        ).eval()  # fmt: skip


@pytest.mark.parametrize("by_key", [False, True])
def test_a_layer_in_the_middle_of_a_chain_was_replaced(by_key: bool) -> None:
    owner = plain()
    found = canon.locate(redrawn(owner, "5"), register(owner, IMAGES, robust=True) if by_key else owner, IMAGES)
    assert found.answer == "derived", found.reason
    assert found.deep >= 0.6


@pytest.mark.parametrize("build", [plain, residual])
@pytest.mark.parametrize("scale", [False, True])
def test_the_first_layer_was_replaced_and_channels_were_moved(build: Callable[..., nn.Sequential], scale: bool) -> None:
    owner = build()
    found = canon.locate(disguise(redrawn(owner, "0"), IMAGES, scale=scale), owner, IMAGES)
    assert found.answer == "derived", found.reason
    assert found.deep >= 0.7
    assert found.model is not None


@pytest.mark.parametrize("name", ["0", "3"])
def test_layers_were_replaced_and_channels_added(name: str) -> None:
    owner, suspect = residual(), residual()
    suspect.get_submodule(name).load_state_dict(residual(7).get_submodule(name).state_dict())
    disguised = canon.attack(suspect, IMAGES, "mix-opseq", ratio=0.3, seed=1).model
    found = canon.locate(relative_noise(disguised, 0.05), owner, IMAGES)
    assert found.answer == "derived", found.reason
    assert found.coverage >= 0.7


def test_a_layer_was_put_between_and_channels_were_moved() -> None:
    owner, between = residual(), nn.Conv2d(24, 24, 1)
    with torch.no_grad():
        between.weight.copy_(torch.eye(24)[:, :, None, None] + 0.01 * between.weight)
        assert between.bias is not None
        between.bias.zero_()
    suspect = nn.Sequential(*list(owner)[:2], between, nn.ReLU(), *list(owner)[2:]).eval()
    found = canon.locate(disguise(suspect, IMAGES), owner, IMAGES)
    assert found.answer == "derived", found.reason
    assert found.coverage >= 0.7


@pytest.mark.parametrize("by_key", [False, True])
def test_layers_that_pass_everything_on_are_nobodys(by_key: bool) -> None:
    """Kernels that hold nothing but a middle on the diagonal, in both networks."""
    owner, suspect = residual(), residual(1)
    with torch.no_grad():
        for layer in (*owner.modules(), *suspect.modules()):
            if isinstance(layer, nn.Conv2d) and layer.in_channels == layer.out_channels:
                layer.weight.mul_(1e-2)
                layer.weight[:, :, 1, 1] += torch.eye(layer.in_channels)
    found = canon.locate(suspect, register(owner, IMAGES, robust=True) if by_key else owner, IMAGES)
    assert found.answer in ("unrelated", "not decided"), found.reason


class Squeezed(nn.Module):
    """Channels times what a few numbers say of each."""

    def __init__(self, width: int, numbers: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, numbers, 1), nn.Conv2d(numbers, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.up(functional.relu(self.down(x.mean((2, 3), keepdim=True)))).sigmoid()
        return x * gate


def test_short_rows_do_not_hide_long_ones() -> None:
    """Rows of eight numbers are like many another; beside rows of 64 they count little."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 1), nn.ReLU(), Squeezed(64, 8), nn.Conv2d(64, 10, 1)
    steps = Owner.of(nn.Sequential(*layers).eval(), IMAGES).portrait.steps
    reached = [step.shuffled for step in steps if len(step.maps) == 2]
    assert len(reached) == 1
    assert reached[0] < 0.6


@pytest.mark.parametrize("build", [plain, residual])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_stranger_is_not_moved_into_place(build: Callable[..., nn.Sequential], seed: int) -> None:
    owner = build()
    found = canon.locate(disguise(build(seed), IMAGES), owner, IMAGES)
    assert found.answer == "unrelated", found.reason


def test_layers_that_were_replaced_are_not_counted_as_found() -> None:
    owner = residual()
    found = canon.locate(redrawn(owner, "2.conv2"), owner, IMAGES)
    layers = {layer.name: layer for layer in found.layers}
    assert layers["2.conv2"].found == 0
    assert layers["0"].found == layers["0"].channels


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_channels_of_a_stranger_are_not_taken_in_their_places(seed: int, by_key: bool) -> None:
    owner = residual()
    found = canon.locate(residual(seed), register(owner, IMAGES) if by_key else owner, IMAGES)
    assert found.answer == "unrelated", found.reason
    assert found.coverage <= 0.01


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("other", [nn.GELU, nn.ReLU6, nn.Tanh])
def test_other_activations_stand_between_the_owners_layers(other: type[nn.Module], by_key: bool) -> None:
    owner = plain()
    anchor = register(owner, IMAGES, robust=True) if by_key else owner
    suspect = nn.Sequential(*(other() if isinstance(layer, nn.ReLU) else layer for layer in owner)).eval()
    found = canon.locate(suspect, anchor, IMAGES)
    assert found.answer == "derived", found.reason
    assert found.coverage == 1
    stranger = nn.Sequential(*(other() if isinstance(layer, nn.ReLU) else layer for layer in plain(1))).eval()
    assert canon.locate(stranger, anchor, IMAGES).answer in ("unrelated", "not decided")


class Shifted(nn.Module):
    """A network that shifts and scales its inputs by itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1))
        self.register_buffer("spread", torch.tensor([0.9, 1.1, 1.3]).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net((x - self.get_buffer("mean")) / self.get_buffer("spread"))
        return result


@pytest.mark.parametrize("by_key", [False, True])
def test_inputs_are_shifted_and_scaled_before_the_first_layer(by_key: bool) -> None:
    owner = residual()
    anchor = {"layout_key": register(owner, IMAGES, robust=True)} if by_key else {"reference": owner}
    found = canon.judge(Shifted(disguise(owner, IMAGES)).eval(), IMAGES, **anchor)
    assert found.answers.network.answer == "derived", found.answers.network
    assert found.answers.network.coverage == 1
    assert found.verdict.kind == "matches"
