"""Hidden models written as other programs, and judged."""

from __future__ import annotations

import random
from typing import Final

import torch
from torch import Tensor

from canon import zoo
from canon.attacks import attack
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet
from canon_benchmarks.cases import Rewritten
from canon_benchmarks.measures.judged import judge_both_ways, owned
from canon_benchmarks.thief import REWRITINGS, rewritten

GOOD: Final = ("equal", "contained")
RATIO: Final = 0.2
COUNT: Final = 5
LARGER: Final = 32
"""Pixels that the other size has more."""


def _input(name: str, seed: int) -> Tensor:
    example = zoo.example_input(name)
    if seed % 2 == 0:
        return example
    side = example.shape[-1] + LARGER
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(seed))


def measure_rewritten(case: Rewritten, setup: Setup, sheet: Sheet) -> None:
    """Hide, rewrite and judge one model."""
    reference, key = owned(case.model)
    hidden = attack(reference, zoo.example_input(case.model), "mix-opseq", ratio=RATIO, seed=case.seed).model
    names = random.Random(case.seed).sample(list(REWRITINGS), COUNT)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        suspect = rewritten(hidden, names, seed=case.seed)
    example = _input(case.model, case.seed)
    sheet.note(rewritings=suspect.meta["done"], size=example.shape[-1])
    judge_both_ways(sheet, suspect, example, reference, key, GOOD)
