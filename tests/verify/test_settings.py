"""Settings of operations: a network with another epsilon, slope or approximation is not the owner's as it is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import canon
from canon.api import read_evidence
from canon.api.checking import check_evidence
from canon.errors import TraceError, VerificationError
from canon.graph.tensors import meta_clone
from canon.report import render
from canon.rewrite import fold_norms
from canon.verify.digest import document_digest
from canon.verify.operations import operations_of
from tests.preservation import randomize

EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Clamped(nn.Module):
    """ReLU in other words."""

    def forward(self, x: Tensor) -> Tensor:
        """No value below zero."""
        return x.clamp(min=0)


class Net(nn.Module):
    """Convolutions with a norm, and a layer norm in front of the head."""

    def __init__(self, *, eps: float = 1e-5, slope: float = 0.01, tanh: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(12, eps=eps)
        self.act1 = nn.LeakyReLU(slope)
        self.conv2 = nn.Conv2d(12, 16, 3, padding=1)
        self.act2 = nn.GELU("tanh" if tanh else "none")
        self.act3: nn.Module = nn.ReLU()
        self.norm2 = nn.LayerNorm(16, eps=eps)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.act3(self.act2(self.conv2(self.act1(self.norm1(self.conv1(x))))) + 0.1)
        result: Tensor = self.head(self.norm2(x.mean((2, 3))))
        return result


def other(owner: nn.Module, **settings: Any) -> nn.Module:
    """The owner's numbers with other settings."""
    suspect = Net(**settings).eval()
    suspect.load_state_dict(owner.state_dict())
    return suspect


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize(
    ("settings", "what", "values"),
    [
        ({"tanh": True}, "approximate", ("none", "tanh")),
        ({"slope": 0.012}, "negative_slope", ("0.01", "0.012")),
        ({"eps": 1.2e-5}, "eps of 'norm1'", ("1e-05", "1.2e-05")),
    ],
)
def test_other_settings_are_named_and_are_not_equal(
    settings: dict[str, Any], what: str, values: tuple[str, str], by_key: bool
) -> None:
    owner = randomize(Net()).float()
    given: dict[str, Any] = {"layout_key": canon.register(owner, EXAMPLE)} if by_key else {"reference": owner}
    found = canon.judge(other(owner, **settings), EXAMPLE, **given)
    network = found.answers.network
    assert network.answer == "derived"
    first = found.evidence["settings"]["different"][0]
    assert what in first["what"]
    assert (first["owner"], first["suspect"]) == values
    assert all(value in network.reason for value in values)
    read_evidence(json.dumps(found.evidence))
    assert values[1] in render(found.evidence)


def clamped(owner: nn.Module) -> nn.Module:
    """The same with ReLU as a clamp."""
    suspect = copy.deepcopy(owner)
    suspect.act3 = Clamped().eval()
    return suspect


def folded(owner: nn.Module) -> nn.Module:
    """The same with its batch norm in the convolution, whatever epsilon it had."""
    made: nn.Module = fold_norms(owner, EXAMPLE).model
    return made


def disguised(owner: nn.Module) -> nn.Module:
    """The same with channels beside the owner's, in kernels that were grown."""
    made: nn.Module = canon.attack(owner, EXAMPLE, ops=["nso_clique", "grown_kernel"], ratio=0.2).model
    return made


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("made", [clamped, folded, disguised])
def test_the_same_in_other_words_stays_equal(made: Callable[[nn.Module], nn.Module], by_key: bool) -> None:
    owner = randomize(Net(eps=1e-3)).float()
    given: dict[str, Any] = {"layout_key": canon.register(owner, EXAMPLE)} if by_key else {"reference": owner}
    found = canon.judge(made(owner), EXAMPLE, **given)
    assert found.answers.network.answer == "equal", found.answers.network.reason
    assert found.evidence["settings"] == {"problem": None, "different": []}


class Recurrent(nn.Module):
    """A network whose program no key holds."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the last step."""
        states, _ = self.gru(x)
        result: Tensor = self.head(states[:, -1])
        return result


def test_what_a_key_does_not_hold_is_named_as_not_compared() -> None:
    owner, example = randomize(Recurrent()).float(), torch.randn(2, 5, 4)
    found = canon.judge(owner, example, layout_key=canon.register(owner, example))
    assert found.answers.network.answer == "equal"
    assert "settings of operations were not compared" in found.answers.network.reason
    assert "settings of operations, which were not compared" in render(found.evidence)


class Counting(nn.Module):
    """A network that looks at a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """As many rows as the first weight says."""
        result: Tensor = self.layer(x) * int(self.layer.weight[0, 0] * 10)
        return result


def test_a_program_without_numbers_is_never_run_for_real() -> None:
    owner, given = Counting().eval(), torch.randn(2, 4)
    assert operations_of(owner, given)
    with pytest.raises(TraceError, match="without numbers"):
        operations_of(meta_clone(owner), given)


class Constant(nn.Module):
    """A network with a tensor that is no buffer, and a function that has several spellings."""

    def __init__(
        self, constant: float | None = None, slope: float = 0.0, approximate: str = "none", axis: int = 1
    ) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.constant = None if constant is None else torch.full((16,), constant)
        self.slope, self.approximate, self.axis = slope, approximate, axis

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = functional.gelu(self.first(x), approximate=self.approximate)
        x = x if self.constant is None else x + self.constant
        x = functional.leaky_relu(x, self.slope) if self.slope else torch.relu(x)
        result: Tensor = self.last(x.mean(self.axis))
        return result


@pytest.mark.parametrize(
    ("settings", "word", "what"),
    [
        ({"constant": 0.501}, "derived", "a constant of add"),
        ({"slope": 1e-3}, "derived", "an activation"),
        ({"slope": 1e-12}, "equal", None),
        ({"slope": 1e-12, "approximate": "tanh"}, "derived", "an activation"),
        ({"axis": -2}, "equal", None),
    ],
)
def test_what_stands_in_the_code_alone_is_compared(settings: dict[str, Any], word: str, what: str | None) -> None:
    owner = randomize(Constant(0.5 if "constant" in settings else None)).float()
    example = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    suspect = Constant(**settings).eval()
    suspect.load_state_dict(owner.state_dict())
    found = canon.judge(suspect, example, reference=owner)
    assert found.answers.network.answer == word, found.answers.network.reason
    assert [item["what"] for item in found.evidence["settings"]["different"]][:1] == ([what] if what else [])


def test_evidence_that_leaves_settings_out_contradicts_itself() -> None:
    owner = randomize(Net()).float()
    document = dict(canon.judge(owner, EXAMPLE, reference=owner).evidence)
    document["settings"] = None
    document["digest"] = document_digest({k: v for k, v in document.items() if k != "digest"})
    with pytest.raises(VerificationError, match="with which settings"):
        check_evidence(document)
