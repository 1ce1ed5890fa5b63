"""Suspects that take their inputs in another convention, and are disguised beside that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import canon
from canon.verify.answers import Answers, Function, MarkAnswer, Network, Priority
from canon.verify.function import Outputs, compare_outputs
from canon.verify.verdict import decide
from tests.containment.disguises import chain, images


def _first(change: Callable[[Tensor], Tensor]) -> nn.Module:
    net = copy.deepcopy(chain())
    first: Any = net[0]
    with torch.no_grad():
        first.weight.copy_(change(first.weight.clone()))
    return net


def _transposed() -> nn.Module:
    net = copy.deepcopy(chain())
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.copy_(module.weight.transpose(2, 3).clone())
    return net


MIXING = torch.tensor([[0.5, 0.5, 0.1], [-0.6, 0.4, 0.3], [0.2, -0.3, 0.9]], dtype=torch.float64)
TAKEN: dict[str, Callable[[], tuple[nn.Module, Callable[[Tensor], Tensor]]]] = {
    "BGR": lambda: (_first(lambda w: w.flip(1)), lambda x: x.flip(1)),
    "negated": lambda: (_first(lambda w: -w), lambda x: -x),
    "transposed": lambda: (_transposed(), lambda x: x.transpose(2, 3)),
    "mixed": lambda: (
        _first(lambda w: torch.einsum("oc...,cd->od...", w, MIXING.inverse())),
        lambda x: torch.einsum("cd,nd...->nc...", MIXING, x),
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_copy_is_found_whatever_its_inputs_are(name: str) -> None:
    other, convert = TAKEN[name]()
    owner, inputs = chain(), images()
    assert torch.allclose(other(convert(inputs)), owner(inputs)), "the same function of other inputs"
    suspect = canon.attack(other, inputs, "nso_zero", ratio=0.2, seed=1).model
    found = canon.judge(suspect, inputs, reference=owner)
    assert found.answers.network.answer == "derived", found.answers.network.reason
    assert found.verdict.kind == "matches"
    if name != "mixed":  # a key does not hold what would tell any matrix
        by_key = canon.locate(suspect, canon.register(owner, inputs), inputs)
        assert by_key.answer == "derived", by_key.reason


def test_the_reason_says_so() -> None:
    suspect = canon.attack(TAKEN["BGR"]()[0], images(), "nso_zero", ratio=0.2, seed=1).model
    assert "another convention" in canon.locate(suspect, chain(), images()).reason


@pytest.mark.parametrize("seed", range(3))
def test_a_stranger_stays_one(seed: int) -> None:
    found = canon.judge(chain(seed + 5), images(), reference=chain())
    assert found.answers.network.answer == "unrelated"


def test_outputs_that_move_alike_refute_nothing() -> None:
    network = Network("unrelated", "another network")
    apart = Function("disagree", "outputs differ", 1.2, 0.1, {"random": 16}, 0.1)
    mark, priority = MarkAnswer("no key", "no key"), Priority("nothing shown", "no claim")
    assert decide(Answers(network, apart, mark, priority)).kind == "refuted"
    for correlation in (0.85, 1.0):
        alike = replace(apart, correlation=correlation)
        assert decide(Answers(network, alike, mark, priority)).kind == "inconclusive"


def test_the_correlation_sees_through_factors_and_offsets() -> None:
    outputs = torch.randn(16, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = compare_outputs(Outputs(3 * outputs + 0.5, (10,)), Outputs(outputs, (10,)), "random")
    assert found.correlation == pytest.approx(1.0)
    other = compare_outputs(Outputs(outputs.flip(0), (10,)), Outputs(outputs, (10,)), "random").correlation
    assert other is not None
    assert other < 0.5
