"""Are shapes and logits those of the clean model after recovery?"""

from __future__ import annotations

import functools
from typing import Final

import torch
from torch import Tensor

from canon.bench.lab import Setup
from canon.bench.measures.attacked import count
from canon.bench.measures.sheet import Sheet, short
from canon.recovery import recover
from canon_benchmarks.cases import Restored
from canon_benchmarks.measures.hidden import clean_model, example_of, hidden_model
from canon_benchmarks.subjects import gap, inputs, logits, shapes

LIMIT: Final = 1e-5
"""Largest difference of logits from the clean model's, in float32."""


def measure_restored(case: Restored, setup: Setup, sheet: Sheet) -> None:
    """Recover and compare."""
    clean, attacked = clean_model(case.model, setup.device), hidden_model(case, setup, sheet)
    sheet.begin()
    found = recover(attacked, example_of(case, setup)).model
    sheet.lap("recover")
    given, same = inputs(case.model, case.seed), shapes(found) == shapes(clean)
    single = gap(logits(found, given), _expected(case.model, case.seed, setup.device))
    double = gap(logits(found, given, torch.float64), logits(clean, given, torch.float64))
    sheet.note(
        recovered=count(found), shapes=same, gap=short(single), gap_float64=short(double), good=same and single <= LIMIT
    )


@functools.lru_cache(maxsize=8)
def _expected(name: str, seed: int, device: str) -> Tensor:
    return logits(clean_model(name, device), inputs(name, seed))
