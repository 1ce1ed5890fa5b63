"""Somebody replaces what no channel goes along with, and claims that it is still the owner's network."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from canon.api import check_evidence, judge
from canon.verify import register
from canon.verify.certificate import certify
from tests.liars.networks import Experts, Language, Perceptron, Recurrent, Vision, replaced, seeded
from tests.verify.small import example as images
from tests.verify.small import tiny

GENERATOR = torch.Generator().manual_seed(0)
KINDS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "perceptron": (Perceptron, torch.randn(4, 12, generator=GENERATOR)),
    "vision": (Vision, torch.randn(2, 3, 16, 16, generator=GENERATOR)),
    "language": (Language, torch.randint(0, 40, (2, 8), generator=GENERATOR)),
    "recurrent": (Recurrent, torch.randn(3, 5, 6, generator=GENERATOR)),
    "experts": (Experts, torch.randn(4, 10, generator=GENERATOR)),
}
BIASES = ("first.bias", "second.bias", "third.bias")
REPLACED = {
    "all biases": ("perceptron", BIASES),
    "one bias": ("perceptron", ("second.bias",)),
    "attention": ("vision", ("blocks.0.mix", "blocks.1.mix")),
    "attention, tokens and norms": (
        "vision", ("blocks.0.mix", "blocks.1.mix", "token", "positions", "blocks.0.norm", "blocks.1.norm")),
    "token": ("vision", ("token",)),
    "positions": ("vision", ("positions",)),
    "a norm's weight": ("vision", ("blocks.1.norm2.weight",)),
    "embeddings": ("language", ("words", "places")),
    "all but the tied embedding": ("language", ("places", "block")),
    "recurrent weights": ("recurrent", ("memory",)),
    "experts": ("experts", ("up", "down")),
    "router": ("experts", ("router",)),
}  # fmt: skip
MINOR = ("one bias", "token", "a norm's weight", "router")
"""Most of the network is still there, and may be called derived; never equal or contained."""
ROWS_DO_NOT_TELL = ("all biases", "one bias", "token", "positions", "a norm's weight", "experts")
"""What has no rows of its own that a layer could be known by."""


def network(kind: str) -> tuple[nn.Module, Tensor]:
    make, example = KINDS[kind]
    return seeded(make), example


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_key", [False, True])
def test_the_network_itself_is_equal(kind: str, by_key: bool) -> None:
    owner, example = network(kind)
    anchor = {"layout_key": register(owner, example)} if by_key else {"reference": owner}
    found = judge(owner, example, **anchor)
    assert found.answers.network.answer == "equal", found.answers.network
    assert found.answers.network.compared == 1.0
    assert found.verdict.kind == "matches"
    check_evidence(found.evidence)


@pytest.mark.parametrize("what", REPLACED)
@pytest.mark.parametrize("by_key", [False, True])
def test_what_was_replaced_is_noticed(what: str, by_key: bool) -> None:
    kind, names = REPLACED[what]
    owner, example = network(kind)
    liar = replaced(owner, names)
    anchor = {"layout_key": register(owner, example)} if by_key else {"reference": owner}
    found = judge(liar, example, **anchor)
    allowed: tuple[str, ...] = ("derived", "not decided") if what in MINOR else ("not decided", "unrelated")
    if what == "all biases":
        allowed = ("derived", "not decided", "unrelated")  # every weight is still the owner's
    assert found.answers.network.answer in allowed, found.answers.network
    assert found.answers.function.answer == "disagree"
    check_evidence(found.evidence)


@pytest.mark.parametrize("what", ROWS_DO_NOT_TELL)
def test_rows_alone_would_not_notice(what: str) -> None:
    """A verifier that compares nothing but the rows of layers believes every one of them."""
    kind, names = REPLACED[what]
    owner, example = network(kind)
    found = certify(replaced(owner, names), owner, example)
    assert all(layer.passed for layer in found.layers)
    assert not found.passed


def test_a_new_head_is_never_equal() -> None:
    owner, example = network("perceptron")
    found = judge(replaced(owner, ("third",)), example, reference=owner)
    assert found.answers.network.answer in ("derived", "not decided")
    assert "equal" not in found.verdict.reason


@pytest.mark.parametrize("change", [0.003, 0.01, 0.1])
def test_a_norm_that_was_changed_a_little_is_never_equal(change: float) -> None:
    """So little that outputs still agree: rows and outputs alone would call it equal."""
    owner = tiny(0, 32)
    liar = copy.deepcopy(owner)
    with torch.no_grad():
        liar.get_parameter("norm2.bias")[3] += change
    found = judge(liar, images(), reference=owner)
    assert found.answers.network.answer != "equal", found.answers.network
