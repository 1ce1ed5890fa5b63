"""Classes are the channels that are proportional wherever they are read, as activations show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from canon.graph import trace
from canon.recovery.partition import Classes, Refinement
from canon.recovery.tolerance import Tolerance
from tests.networks import Net, conv
from tests.preservation import randomize
from tests.recovery.small import Chain, Draft, Gated, Residual, Small, example
from tests.recovery.test_adversaries import (
    gate_cliques,
    gate_copies,
    mutual_cliques,
    null_terms,
    residual_cliques,
    residual_copies,
    shifted_copies,
)  # fmt: skip

READERS: dict[type[Small], dict[str, tuple[str, ...]]] = {
    Chain: {"a": ("b",), "b": ("c",), "c": ("fc",)},
    Gated: {"a": ("s1", "b"), "s": ("s2",), "b": ("fc",)},
    Residual: {"r": ("p1", "q1", "fc"), "p": ("p2",), "q": ("q2",)},
}
NAMES = {"r": "stem", "p": "p1", "q": "q1", "s": "s1"}


def read_by(model: Small, layers: tuple[str, ...]) -> list[Tensor]:
    """What each of some layers reads, `channels x everything else`."""
    kept: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(lambda _, given, name=name: kept.update({name: given[0]}))
        for name in layers
    ]
    with torch.no_grad():
        model(torch.randn(32, 3, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    for handle in handles:
        handle.remove()
    return [kept[name].transpose(0, 1).flatten(1) for name in layers]


def proportional(signals: list[Tensor]) -> Tensor:
    """The oracle: pairs of channels that are positive multiples of each other in every signal."""
    result = torch.ones(len(signals[0]), len(signals[0]), dtype=torch.bool)
    for signal in signals:
        unit = signal / signal.norm(dim=1, keepdim=True).clamp(min=1e-300)
        result &= (unit[:, None] - unit[None]).norm(dim=2) < 1e-6
    return result


def classes_of(model: Small) -> dict[str, Classes]:
    graph = trace(model, example())
    found = Refinement(graph, dict(model.state_dict()), Tolerance.of(torch.float64)).run()
    return {space.name: found[space.id] for space in graph.spaces}


@pytest.mark.parametrize(
    ("kind", "adversary"),
    [(Chain, null_terms), (Chain, shifted_copies), (Residual, residual_copies), (Residual, residual_cliques),
     (Residual, mutual_cliques), (Gated, gate_copies), (Gated, gate_cliques)],
    ids=lambda value: value.__name__,
)  # fmt: skip
def test_agrees_with_activations(kind: type[Small], adversary: Callable[[Draft], None]) -> None:
    model = randomize(kind(), seed=3)
    assert isinstance(model, Small)
    draft = Draft(model)
    adversary(draft)
    attacked = draft.build()
    found = classes_of(attacked)
    for space, readers in READERS[kind].items():
        classes = found[NAMES.get(space, space)]
        signals = read_by(attacked, readers)
        expected = proportional(signals)
        # A unit that these inputs do not switch on shows nothing.
        live = ~classes.null & torch.stack([signal.any(dim=1) for signal in signals]).all(dim=0)
        together = classes.leader[:, None] == classes.leader[None]
        assert torch.equal(together[live][:, live], expected[live][:, live]), space


def test_factors_lead_from_the_leader_to_the_channel() -> None:
    model = randomize(Chain(), seed=3)
    assert isinstance(model, Chain)
    draft = Draft(model)
    copy = draft.copy("a", 2, 0.5, 0.5)
    draft.scale(("na.weight", "na.bias"), ("b.weight",), copy, 2.5)
    attacked = Chain.of(draft.state)
    classes = classes_of(attacked)["a"]
    assert int(classes.leader[copy]) == 2
    graph = trace(attacked, example())
    tap = graph.space_named("a").consumers[0].tap
    assert float(classes.factors[tap][copy]) == pytest.approx(2.5)
    (signal,) = read_by(attacked, ("b",))
    torch.testing.assert_close(signal[copy], 2.5 * signal[2])


def test_work_ends_soon() -> None:
    """A worklist, not rounds over the whole network."""
    model = randomize(Residual(), seed=3)
    assert isinstance(model, Residual)
    draft = Draft(model)
    mutual_cliques(draft)
    residual_copies(draft)
    attacked = draft.build()
    graph = trace(attacked, example())
    told: list[tuple[int, int]] = []
    refinement = Refinement(
        graph, dict(attacked.state_dict()), Tolerance.of(torch.float64), lambda done, total: told.append((done, total))
    )
    refinement.run()
    assert refinement.visits <= 5 * len(graph.spaces)
    assert [done for done, _ in told] == list(range(1, refinement.visits + 1))
    assert all(total >= done for done, total in told)


def test_blocks_of_a_grouped_layer_are_never_crossed() -> None:
    net = randomize(Net(lambda net, x: net.fc(net.g(net.a(x).relu()).relu().mean((2, 3))), a=conv(3, 8),
                        g=nn.Conv2d(8, 6, 3, groups=2), fc=nn.Linear(6, 2)))  # fmt: skip
    with torch.no_grad():
        for tensor in (net.get_parameter("a.weight"), net.get_parameter("a.bias")):
            tensor[[1, 5, 6]] = tensor[0].clone()
    graph = trace(net, example())
    tensors = {name: tensor.detach() for name, tensor in net.named_parameters()}
    found = Refinement(graph, tensors, Tolerance.of(torch.float64)).run()
    assert found[graph.space_named("a").id].leader.tolist() == [0, 0, 2, 3, 4, 5, 5, 7]
