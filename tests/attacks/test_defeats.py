"""What blind recovery does not undo today: a table of measured facts.

A line says whether recovery brings every width back. When recovery learns an attack, this test fails for it: change the
line to True. Nothing else here depends on it.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import nn

import canon
from canon.graph import trace
from tests.preservation import randomize

RESTORED: Final[dict[tuple[str, tuple[str, ...]], bool]] = {
    ("nso_zero", ()): True,
    ("nso_clique", ()): True,
    ("nso_split", ()): True,
    ("dead_range", ()): True,
    ("dead_data", ()): False,
    ("odd_group", ()): True,
    ("odd_replace", ()): True,
    ("entangled", ()): True,
    ("tiny_column", ()): True,
    ("noisy_clique", ()): True,
    ("nso_zero", ("noise:relative=0.001",)): True,
    ("nso_zero", ("noise:relative=0.03",)): False,
    ("nso_clique", ("round=4",)): False,
}
"""By operation and steps afterwards: whether the widths come back."""


def network() -> nn.Module:
    return randomize(
        nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 8), nn.GELU(), nn.Linear(8, 3),
        )
    )  # fmt: skip


@pytest.mark.parametrize(("op", "after"), RESTORED, ids=str)
def test_widths_after_blind_recovery(op: str, after: tuple[str, ...]) -> None:
    example = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model: Any = network()
    hidden = canon.attack(model, example, [op], ratio=0.5, after=after).model
    recovered = canon.recover(hidden, example).model
    widths = [{space.name: space.width for space in trace(net, example).free} for net in (model, recovered)]
    assert (widths[0] == widths[1]) == RESTORED[op, after]
