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
