"""Does an attacked network compute what it computed before?"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor, nn

from canon import zoo
from canon.attacks import AttackOptions, attack_with
from canon.bench.lab import Setup
from canon.bench.measures.attacked import Refused
from canon.bench.measures.sheet import Sheet
from canon.errors import AttackError
from canon_benchmarks.cases import Kept
from canon_benchmarks.subjects import gap, subject

TOLERANCES: Final = {"float32": 1e-5, "float64": 1e-9}
"""Largest difference of an output, relative to the largest output, by precision."""


@torch.no_grad()
def measure_kept(case: Kept, setup: Setup, sheet: Sheet) -> None:
    """Attack, with kernels that grow unless that is too much, and compare what is computed."""
    model, example = _prepared(case.model, case.dtype, setup.device)
    for expand in (True, False):
        options = AttackOptions(ops=(case.attack,), ratio=case.ratio, seed=case.seed, expand_kernels=expand)
        sheet.begin()
        try:
            attacked = attack_with(model, example, options)
        except AttackError as error:
            refusal = error.message
            continue
        sheet.lap("attack")
        difference = gap(attacked.model(example), model(example))
        sheet.note(
            parameters=attacked.log.parameters,
            kernels="expanded" if expand else "not expanded",
            error=difference,
            good=difference <= TOLERANCES[case.dtype],
        )
        return
    raise Refused(refusal)


@lru_cache(maxsize=1)
def _prepared(name: str, dtype: str, device: str) -> tuple[nn.Module, Tensor]:
    wanted = getattr(torch, dtype)
    return subject(name).to(device, wanted), zoo.example_input(name).to(device, wanted)
