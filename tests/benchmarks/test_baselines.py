"""Every baseline does what it says on the case it can handle, and fails where it must."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from canon.attacks import attack
from canon.graph import trace
from canon.recovery import recover
from canon.rewrite import SpaceRewrite, rewrite
from canon_benchmarks.baselines import (
    BASELINES,
    FullyKnowledgeable,
    NeuronMap,
    PartiallyKnowledgeable,
    SinglePass,
    Skilled,
)
from tests.preservation import outputs, permutation, relative_error, scaling
from tests.recovery.probing import EXAMPLE, PRIMITIVES, chain, residual, shapes

FLAT = torch.zeros(2, 6)


def samples(count: int = 256) -> Tensor:
    return torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(9))


def error(got: nn.Module | None, clean: nn.Module, example: Tensor = EXAMPLE) -> float:
    """Disagreement on inputs that no baseline has seen."""
    assert got is not None, "the baseline gave no model"
    inputs = torch.randn(8, *example.shape[1:], generator=torch.Generator().manual_seed(7))
    return relative_error(outputs(got, inputs), outputs(clean, inputs))


def attacked(clean: nn.Module, *ops: str, linked: bool) -> nn.Module:
    return attack(clean, EXAMPLE, ops, ratio=0.5, seed=2, chain=linked).model


def shuffled(clean: nn.Module) -> nn.Module:
    """Permuted and scaled, with nothing added."""
    generator = torch.Generator().manual_seed(0)
    graph = trace(clean, EXAMPLE)
    ordered = rewrite(clean, graph, {space.id: permutation(space, generator) for space in graph.free})
    return rewrite(ordered, graph, {space.id: scaling(graph, space, generator) for space in graph.free})


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_nothing_is_mutated_and_everything_is_said(name: str) -> None:
    model, original = attacked(residual(), "nso_split", linked=False), residual()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    result = BASELINES[name].recover(model, EXAMPLE, samples=samples(), original=original)
    assert result.note
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]), key
    for key, tensor in original.state_dict().items():
        assert torch.equal(tensor, residual().state_dict()[key]), key


def test_what_is_needed_is_asked_for() -> None:
    model = residual()
    assert Skilled().recover(model, EXAMPLE).model is None
    assert "samples" in Skilled().recover(model, EXAMPLE).note
    for baseline in (FullyKnowledgeable(), NeuronMap()):
        result = baseline.recover(model, EXAMPLE, samples=samples())
        assert result.model is None
        assert "original" in result.note


class TestElimination:
    @pytest.mark.parametrize("op", PRIMITIVES)
    def test_skilled_handles_single_primitives(self, op: str) -> None:
        clean = residual()
        got = Skilled().recover(attacked(clean, op, linked=False), EXAMPLE, samples=samples()).model
        assert error(got, clean) < 1e-3
        if op == "nso_split":
            assert got is not None
            assert shapes(got) == shapes(clean)

    def test_skilled_leaves_chained_cliques(self) -> None:
        clean = residual()
        model = attacked(clean, "nso_clique", linked=True)
        got = Skilled().recover(model, EXAMPLE, samples=samples()).model
        assert got is not None
        assert shapes(got) != shapes(clean)
        assert shapes(recover(model, EXAMPLE).model) == shapes(clean)

    def test_partial_takes_distinct_neurons_for_copies(self) -> None:
        """On a single sample all active neurons are proportional: elimination breaks even a clean model."""
        clean = chain(6, 8, 4)
        given = torch.randn(1, 6, generator=torch.Generator().manual_seed(0))
        got = PartiallyKnowledgeable().recover(clean, FLAT, samples=given).model
        assert error(got, clean, FLAT) > 0.1
        assert not recover(clean, FLAT).report.changed


class TestAlignment:
    @pytest.mark.parametrize("baseline", [FullyKnowledgeable(), NeuronMap()], ids=lambda b: b.name)
    def test_undoes_permutation_and_scale(self, baseline: FullyKnowledgeable | NeuronMap) -> None:
        clean = residual()
        got = baseline.recover(shuffled(clean), EXAMPLE, original=clean).model
        assert error(got, clean) < 1e-4
        assert got is not None
        # The kernels behind the first space are back in order and scale.
        assert torch.allclose(
            got.get_parameter("head.weight"), clean.get_parameter("head.weight"), rtol=1e-3, atol=1e-5
        )

    @pytest.mark.parametrize("op", PRIMITIVES)
    def test_full_knowledge_undoes_single_primitives(self, op: str) -> None:
        clean = residual()
        got = FullyKnowledgeable().recover(attacked(clean, op, linked=False), EXAMPLE, original=clean).model
        assert error(got, clean) < 1e-3
        assert got is not None
        assert shapes(got) == shapes(clean)

    def test_full_knowledge_guesses_dead_neurons(self) -> None:
        """Two neurons that are silent on all samples change places; their weights would tell them apart."""
        clean = residual()
        with torch.no_grad():
            clean.get_parameter("a_norm.bias")[[3, 7]] = -1000.0
        graph = trace(clean, EXAMPLE)
        backwards = SpaceRewrite.permutation(torch.arange(12).flip(0))
        model = rewrite(clean, graph, {graph.space_named("a").id: backwards})
        got = FullyKnowledgeable().recover(model, EXAMPLE, original=clean).model
        assert got is not None
        rows, wanted = (m.get_parameter("a.weight").detach() for m in (got, clean))
        assert torch.equal(rows[4], wanted[4])
        assert torch.equal(rows[3], wanted[7])

    def test_full_knowledge_gives_up_on_another_model(self) -> None:
        result = FullyKnowledgeable().recover(residual(seed=1), EXAMPLE, original=residual())
        assert result.model is None
        assert "resembles" in result.note

    @pytest.mark.parametrize("op", PRIMITIVES)
    def test_neuron_map_cannot_face_other_widths(self, op: str) -> None:
        clean = residual()
        result = NeuronMap().recover(attacked(clean, op, linked=False), EXAMPLE, original=clean)
        assert result.model is None
        assert "instead of" in result.note


class TestSinglePass:
    @pytest.mark.parametrize("op", PRIMITIVES)
    def test_undoes_single_primitives_along_a_chain(self, op: str) -> None:
        clean = chain(6, 10, 10, 4)
        model = attack(clean, FLAT, [op], ratio=0.5, seed=1, chain=False).model
        got = SinglePass().recover(model, FLAT).model
        assert error(got, clean, FLAT) < 1e-5
        assert got is not None
        assert shapes(got) == shapes(clean)

    def test_chained_cliques_stay_in(self) -> None:
        clean = chain(6, 10, 10, 4)
        model = attack(clean, FLAT, ["nso_clique"], ratio=0.5, seed=1).model
        got = SinglePass().recover(model, FLAT).model
        assert error(got, clean, FLAT) < 1e-5
        assert got is not None
        assert shapes(got) != shapes(clean)
        assert shapes(recover(model, FLAT).model) == shapes(clean)

    def test_compositions_keep_the_function_and_leave_channels(self) -> None:
        clean = residual()
        model = attacked(clean, *PRIMITIVES, linked=True)
        got = SinglePass().recover(model, EXAMPLE).model
        assert error(got, clean) < 1e-5
        assert got is not None
        assert shapes(got) != shapes(clean)

    def test_clean_model_is_unchanged(self) -> None:
        clean = residual()
        got = SinglePass().recover(clean, EXAMPLE).model
        assert got is not None
        for name, tensor in got.state_dict().items():
            assert torch.equal(tensor, clean.state_dict()[name]), name
