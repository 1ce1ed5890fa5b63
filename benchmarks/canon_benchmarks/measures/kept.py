"""Does an attacked network compute what it computed before?"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor, nn

from canon import zoo
from canon.attacks import AttackOptions
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet
from canon_benchmarks.cases import Kept
from canon_benchmarks.measures.hidden import attack_kernels
from canon_benchmarks.subjects import gap, subject

TOLERANCES: Final = {"float32": 1e-5, "float64": 1e-9}
"""Largest difference of an output, relative to the largest output, by precision."""


@torch.no_grad()
def measure_kept(case: Kept, setup: Setup, sheet: Sheet) -> None:
    """Attack, with kernels that grow unless that is too much, and compare what is computed."""
    model, example = _prepared(case.model, case.dtype, setup.device)
    options = AttackOptions(ops=(case.attack,), ratio=case.ratio, seed=case.seed)
    attacked = attack_kernels(model, example, options, sheet)
    difference = gap(attacked.model(example), model(example))
    good = difference <= TOLERANCES[case.dtype]
    sheet.note(parameters=attacked.log.parameters, error=difference, good=good)


@lru_cache(maxsize=1)
def _prepared(name: str, dtype: str, device: str) -> tuple[nn.Module, Tensor]:
    wanted = getattr(torch, dtype)
    return subject(name).to(device, wanted), zoo.example_input(name).to(device, wanted)
