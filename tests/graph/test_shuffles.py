"""Channel shuffles: channels move through them, whatever stands behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import canon
from canon.graph import trace
from tests.networks import Net, conv, head
from tests.preservation import check_preserved, outputs, randomize, relative_error

EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def shuffle(x: Tensor, groups: int) -> Tensor:
    """As ShuffleNet writes it."""
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(batch, channels, height, width)


def between(function: Callable[[Any, Tensor], Tensor], width: int = 12, out: int | None = None, **layers: Any) -> Net:
    """`a` and `d` side by side, something on their channels, `b` and a head."""
    return Net(
        lambda net, x: head(net, F.relu(net.b(function(net, torch.cat([net.a(x), F.relu(net.d(x))], 1))))),
        a=conv(3, width // 2), d=conv(3, width - width // 2), b=conv(out or width, 5), fc=nn.Linear(5, 4), **layers,
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "two groups": lambda: between(lambda net, x: shuffle(x, 2)),
    "three groups, of one layer and a half": lambda: between(lambda net, x: shuffle(x, 3)),
    "sizes written in": lambda: between(lambda net, x: x.reshape(-1, 4, 3, 8, 8).permute(0, 2, 1, 3, 4).flatten(1, 2)),
    "three axes": lambda: between(
        lambda net, x: x.reshape(-1, 2, 2, 3, 8, 8).permute(0, 2, 1, 3, 4, 5).reshape(-1, 12, 8, 8)
    ),
    "twice": lambda: between(lambda net, x: shuffle(F.relu(shuffle(x, 2)), 2)),
    "there and back": lambda: between(lambda net, x: shuffle(F.relu(shuffle(x, 2)), 6)),
    "then halves of odd size": lambda: between(
        lambda net, x: torch.cat([(c := shuffle(x, 2).chunk(2, 1))[0], net.e(c[1])], 1),
        width=14, e=conv(7, 7),
    ),
    "then norm and depthwise": lambda: between(
        lambda net, x: F.prelu(net.k(net.n(shuffle(x, 2))), net.p),
        n=nn.BatchNorm2d(12), k=conv(12, 12, groups=12), p=nn.Parameter(torch.rand(12)),
    ),
    "two kernels for each": lambda: between(lambda net, x: net.k(shuffle(x, 2)), out=24, k=conv(12, 24, groups=12)),
    "then a gate": lambda: between(lambda net, x: (y := shuffle(x, 2)) * torch.sigmoid(y.mean((2, 3), keepdim=True))),
    "summed with itself": lambda: between(lambda net, x: shuffle(x, 2) + F.relu(shuffle(x, 2))),
    "padded": lambda: between(lambda net, x: F.pad(shuffle(x, 2), (0, 0, 0, 0, 1, 2)), out=15),
    "layer": lambda: between(lambda net, x: net.s(x), s=nn.ChannelShuffle(3)),
    "flattened": lambda: Net(
        lambda net, x: net.fc(F.max_pool2d(shuffle(F.relu(net.a(x)), 2), 4).flatten(1)),
        a=conv(3, 8), fc=nn.Linear(32, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_channels_move_through_a_shuffle(name: str) -> None:
    graph = check_preserved(randomize(NETWORKS[name]()), EXAMPLE)
    assert [space.name for space in graph.spaces if space.pins and space.width > 2] == ["fc"]
    assert bool(graph.orders) != (name in ("there and back", "three axes"))  # in these, stretches stay whole


def test_what_computes_on_groups_pins() -> None:
    model = randomize(between(lambda net, x: shuffle(x.view(2, 2, 6, 8, 8).softmax(1).flatten(1, 2), 2)))
    graph = check_preserved(model, EXAMPLE)
    assert "splits the channel axis" in str(graph.space_named("a").pinned)


def test_sums_across_a_shuffle_pin() -> None:
    graph = check_preserved(randomize(between(lambda net, x: x + shuffle(x, 2))), EXAMPLE)
    assert "differently cut" in str(graph.space_named("a").pinned)


def test_groups_over_shuffled_channels_pin() -> None:
    graph = check_preserved(randomize(between(lambda net, x: net.g(shuffle(x, 2)), g=conv(12, 12, groups=3))), EXAMPLE)
    assert "shuffled" in str(graph.space_named("a").pinned)


class Unit(nn.Module):
    """One unit of ShuffleNet V2: half of the channels go by, half through three convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            conv(half, half, 1), nn.BatchNorm2d(half), nn.ReLU(), conv(half, half, groups=half), nn.BatchNorm2d(half),
            conv(half, half, 1), nn.BatchNorm2d(half), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        return shuffle(torch.cat((first, self.branch(second)), dim=1), 2)


def small_shufflenet() -> nn.Module:
    """Three units; 28 channels, so that halves of halves are odd."""
    stem = [conv(3, 28), nn.BatchNorm2d(28), nn.ReLU()]
    tail = [conv(28, 24, 1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 6)]
    return nn.Sequential(*stem, Unit(28), Unit(28), Unit(28), *tail)


@pytest.mark.parametrize("method", ["exact", "probe"])
def test_a_disguised_shufflenet_is_the_owners(method: str) -> None:
    owner, example = randomize(small_shufflenet()).float(), EXAMPLE.float()
    hidden = canon.attack(owner, example, "mix-opseq", ratio=0.5, seed=3)
    assert relative_error(outputs(hidden.model, example), outputs(owner, example)) < 1e-3
    recovered = canon.recover(hidden.model, example, method=method).model
    certificate = canon.certify(recovered, owner, example)
    assert certificate.passed, certificate
    found = canon.locate(hidden.model, owner, example)
    assert found.coverage == 1.0
    key = canon.register(owner, example)
    assert canon.judge(hidden.model, example, layout_key=key).answers.network.answer == "equal"


def test_an_attack_moves_shuffled_channels() -> None:
    owner, example = randomize(small_shufflenet()), EXAMPLE
    hidden = canon.attack(owner, example, "nso_zero", ratio=0.2, seed=1).model
    graph = trace(owner, example)
    moved = 0
    for name, axis in graph.orders:
        mine, theirs = owner.state_dict()[name], hidden.state_dict()[name]
        moved += axis == 1 and mine.shape == theirs.shape and not torch.equal(mine, theirs)
    assert relative_error(outputs(hidden, example), outputs(owner, example)) < 1e-10
    assert moved or any(hidden.state_dict()[n].shape != owner.state_dict()[n].shape for n, _ in graph.orders)


def test_a_stranger_is_not_the_owner() -> None:
    owner, example = randomize(small_shufflenet()).float(), EXAMPLE.float()
    stranger = randomize(small_shufflenet(), seed=9).float()
    judged = canon.judge(stranger, example, reference=owner)
    assert judged.answers.network.answer == "unrelated"
