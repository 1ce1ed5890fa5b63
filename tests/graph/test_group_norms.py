"""Group norms: channels change places inside their groups, and groups of equal size as wholes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import canon
from canon.graph import trace
from canon.rewrite import SpaceRewrite, rewrite
from tests.networks import Net, conv, head, two_convs
from tests.preservation import check_preserved, outputs, randomize, relative_error

EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def residual(net: Any, x: Tensor) -> Tensor:
    """A stream with two norms, and a block with one."""
    x = net.n(net.a(x))
    return head(net, F.relu(net.m(x + net.c(F.relu(net.k(net.b(F.relu(x))))))))


def network() -> nn.Module:
    """12 channels in 4 groups in the stream, 6 in 3 inside."""
    return Net(
        residual, a=conv(3, 12), n=nn.GroupNorm(4, 12), b=conv(12, 6), k=nn.GroupNorm(3, 6), c=conv(6, 12),
        m=nn.GroupNorm(4, 12), fc=nn.Linear(12, 5),
    )  # fmt: skip


def test_groups_change_places_as_wholes() -> None:
    graph = check_preserved(randomize(network()), EXAMPLE)
    assert {space.name: (space.groups, space.trading) for space in graph.rigid} == {"a": (4, True), "b": (3, True)}


def test_groups_that_do_not_fit_each_other_stay() -> None:
    norms: dict[str, Any] = {"n": nn.GroupNorm(2, 12), "m": nn.GroupNorm(6, 12)}
    graph = check_preserved(randomize(two_convs(lambda net, x: net.m(F.relu(net.n(x))), 12, **norms)), EXAMPLE)
    assert (graph.space_named("a").groups, graph.space_named("a").trading) == (6, False)


def test_groups_of_a_convolution_stay() -> None:
    layers: dict[str, Any] = {"n": nn.GroupNorm(3, 6), "g": conv(6, 6, groups=3)}
    graph = check_preserved(randomize(two_convs(lambda net, x: net.g(net.n(x)), **layers)), EXAMPLE)
    assert not graph.space_named("a").trading


def test_a_network_whose_groups_changed_places_is_the_owners() -> None:
    owner, example = randomize(network()).float(), EXAMPLE.float()
    key = canon.register(owner, example)
    moved = 0
    for seed in range(4):
        hidden = _disguised(owner, seed)
        assert relative_error(outputs(hidden, example), outputs(owner, example)) < 1e-4
        assert canon.certify(hidden, owner, example).passed
        assert canon.locate(hidden, owner, example).coverage == 1.0
        assert canon.judge(hidden, example, layout_key=key).answers.network.answer == "equal"
        moved += not torch.equal(hidden.state_dict()["n.weight"], owner.state_dict()["n.weight"])
    assert moved == 4


def _disguised(owner: nn.Module, seed: int) -> nn.Module:
    """As an attack does: groups, and channels inside them, in a random order."""
    graph, generator = trace(owner, EXAMPLE.float()), torch.Generator().manual_seed(seed)
    plan = {}
    for space in graph.rigid:
        size = space.width // space.groups
        groups = torch.randperm(space.groups, generator=generator)
        order = [torch.randperm(size, generator=generator) + group * size for group in groups]
        plan[space.id] = SpaceRewrite.permutation(torch.cat(order))
    return rewrite(owner, graph, plan)


def test_channels_in_other_groups_are_another_network() -> None:
    owner, example = randomize(network()).float(), EXAMPLE.float()
    other = randomize(network()).float()
    order = torch.tensor([3, 1, 2, 0, *range(4, 12)])  # 0 and 3 are in different groups
    with torch.no_grad():
        for name in ("a.weight", "a.bias", "n.weight", "n.bias", "c.weight", "c.bias", "m.weight", "m.bias"):
            tensor = other.get_parameter(name)
            tensor.copy_(tensor[order].clone())
        for name in ("b.weight", "fc.weight"):
            tensor = other.get_parameter(name)
            tensor.copy_(tensor[:, order].clone())
    assert relative_error(outputs(other, example), outputs(owner, example)) > 1e-2
    assert not canon.certify(other, owner, example).passed
    assert canon.judge(other, example, reference=owner).answers.network.answer not in ("equal", "contained")


def test_an_attack_moves_groups() -> None:
    hidden = canon.attack(randomize(_with_tail()), EXAMPLE, "nso_zero", ratio=0.5, seed=2, scale=False)
    origin = randomize(_with_tail()).state_dict()["n.weight"].view(4, 3)
    groups = [{round(float(v), 9) for v in row} for row in origin]
    after = [{round(float(v), 9) for v in row} for row in hidden.model.state_dict()["n.weight"].view(4, 3)]
    assert sorted(map(sorted, after)) == sorted(map(sorted, groups))
    assert after != groups
    assert relative_error(outputs(hidden.model, EXAMPLE), outputs(randomize(_with_tail()), EXAMPLE)) < 1e-10


def _with_tail() -> nn.Module:
    return Net(
        lambda net, x: head(net, F.relu(net.b(F.relu(net.n(net.a(x)))))),
        a=conv(3, 12), n=nn.GroupNorm(4, 12), b=conv(12, 6), fc=nn.Linear(6, 4),
    )  # fmt: skip
