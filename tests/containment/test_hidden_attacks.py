"""Attacks whose dummies cannot be shown redundant, on small networks: every channel of the owner's is found."""

from __future__ import annotations

import pytest

from canon.attacks import attack
from canon.containment import locate
from canon.verify import register
from tests.verify.small import example, tiny

HIDDEN = ("dead_range", "dead_data", "odd_group", "odd_replace", "entangled", "tiny_column", "noisy_clique")


@pytest.mark.parametrize("op", HIDDEN)
@pytest.mark.parametrize("ratio", [0.2, 0.5])
def test_every_channel_is_found(op: str, ratio: float) -> None:
    owner, inputs = tiny(width=32), example()
    suspect = attack(owner, inputs, op, ratio=ratio).model
    found = locate(suspect, owner, inputs)
    assert found.answer in ("contained", "derived")
    assert found.coverage >= 0.99


@pytest.mark.parametrize("op", [op for op in HIDDEN if op != "odd_replace"])
def test_every_channel_is_found_by_a_robust_key(op: str) -> None:
    owner, inputs = tiny(width=32), example()
    suspect = attack(owner, inputs, op, ratio=0.5).model
    found = locate(suspect, register(owner, inputs, robust=True), inputs)
    assert found.answer in ("contained", "derived")
    assert found.coverage >= 0.95
