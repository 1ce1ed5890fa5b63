"""Sequences of five rewritings on the four models of the paper, behind a disguise: equal or contained."""

from __future__ import annotations

import random

import pytest
import torch

import canon
from canon import zoo
from canon_benchmarks.thief import REWRITINGS, rewritten


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", zoo.PAPER_MODELS)
def test_sequences_of_five(name: str, seed: int) -> None:
    owner, example = zoo.model(name), zoo.example_input(name)
    key = canon.register(owner, example, seed=5)
    disguised = canon.attack(owner, example, "mix-opseq", ratio=0.2, seed=seed).model
    names = random.Random(seed).choices(list(REWRITINGS), k=5)
    torch.manual_seed(seed)
    suspect = rewritten(disguised, names, seed=seed)
    for found in (
        canon.judge(suspect, example, reference=owner),
        canon.judge(suspect, example, layout_key=key),
    ):
        assert found.answers.network.answer in ("equal", "contained"), (names, found.answers.network.reason)
