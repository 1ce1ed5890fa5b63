"""TorchScript modules that are at hand: their graph is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import canon
from canon.errors import TraceError
from canon.graph import plain
from tests.preservation import randomize
from tests.programs.small import Small

EXAMPLE = torch.randn(1, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
MADE: dict[str, Callable[[nn.Module], Any]] = {
    "scripted": torch.jit.script,
    "traced": lambda model: torch.jit.trace(model, EXAMPLE),
    "frozen": lambda model: torch.jit.freeze(torch.jit.trace(model, EXAMPLE)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("made", MADE)
def test_the_network_is_known_in_torchscript(made: str) -> None:
    owner = randomize(Small())
    hidden = canon.attack(owner, EXAMPLE, "mix-opseq", ratio=0.2).model
    suspect = MADE[made](hidden)
    assert torch.allclose(plain(suspect)(EXAMPLE), hidden(EXAMPLE))
    assert canon.judge(suspect, EXAMPLE, reference=owner).answers.network.answer == "equal"
    assert canon.judge(suspect, EXAMPLE, layout_key=canon.register(owner, EXAMPLE)).answers.network.answer == "equal"


class Asks(nn.Module):
    """Where it goes on depends on what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """One of two ways."""
        if bool(x.sum() > 0):
            x = -x
        result: Tensor = self.layer(x)
        return result


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_flow_that_depends_on_numbers_is_refused() -> None:
    with pytest.raises(TraceError, match="depends on what it is given"):
        plain(torch.jit.script(Asks().eval()))


class Checks(nn.Module):
    """Says what is wrong with an input in words that are made while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        torch._assert(x.shape[3] == 12, f"wide {x.shape[3]}")
        result: Tensor = self.layer(x)
        return result


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_words_of_an_error_are_no_part_of_the_program() -> None:
    model = Checks().double().eval()
    assert torch.equal(plain(torch.jit.script(model))(EXAMPLE), model(EXAMPLE))


class Attends(nn.Module):
    """What torch's own attention asks about its surroundings has no counterpart."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Attention of a sequence to itself."""
        result: Tensor = self.heads(x, x, x)[0]
        return result


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_refusal_names_what_is_in_the_way() -> None:
    with pytest.raises(TraceError, match=r"it calls '\w+', which is no function"):
        plain(torch.jit.script(Attends().eval()))
