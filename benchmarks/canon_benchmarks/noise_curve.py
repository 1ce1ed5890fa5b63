"""`python -m canon_benchmarks noise_curve`: how much noise on the weights recovery stands.

After the attack every parameter is multiplied by `1 + s·n`, `n` drawn from a standard normal distribution, or the model
is rounded to half precision and back. What is recorded is whether all shapes are the clean ones again. Records are kept
in one JSON file and a table is made from it; cases with a record are not run again.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import torch
from torch import nn

from canon import zoo
from canon._files import write_text
from canon.attacks import attack
from canon.bench.measures import exact_arithmetic
from canon.errors import CanonError
from canon.recovery import recover
from canon_benchmarks.grid import GridFile, Record, run_cases
from canon_benchmarks.model_grid import choose, on_device
from canon_benchmarks.subjects import shapes, subject

KEYS: Final = ("model", "variant", "noise", "seed", "ratio")
NOISES: Final = (
    "0", "1e-7", "1e-6", "1e-5", "1e-4", "3e-4", "1e-3", "2e-3", "3e-3", "1e-2", "float16", "bfloat16",
    "1e-5 of spread",
)  # fmt: skip
"""Relative noise, the precision that the model is rounded to, or noise relative to the deviation of each tensor."""

OUT: Final = Path("docs/results/noise_curve.json")
ATTACKS: Final = ("nso_clique", "nso_split", "mix-opseq")


@dataclass(frozen=True)
class NoiseCase:
    """One disturbance of one attacked model."""

    model: str
    variant: str
    noise: str
    seed: int
    ratio: float


def disturb(model: nn.Module, noise: str, seed: int) -> nn.Module:
    """A copy of a model with noise on its parameters, or rounded to half precision and back."""
    model = copy.deepcopy(model)
    if noise in ("float16", "bfloat16"):
        return model.to(getattr(torch, noise)).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator).to(parameter.device)
            if noise.endswith(" of spread"):
                spread = parameter.std() if parameter.numel() > 1 else parameter.abs()
                parameter.add_(float(noise.removesuffix(" of spread")) * spread * drawn)
            else:
                parameter.mul_(1 + float(noise) * drawn)
    return model


def measure(case: NoiseCase, device: str = "cpu") -> Record:
    """Disturb, recover, and look at the shapes."""
    torch.set_num_threads(1)
    exact_arithmetic()
    clean, attacked = _attacked(case.model, case.variant, case.ratio, case.seed, device)
    disturbed = disturb(attacked, case.noise, case.seed)
    try:
        result = recover(disturbed, zoo.example_input(case.model).to(device))
    except CanonError as error:
        return {"shapes": False, "error": str(error)}
    found = shapes(result.model)
    wrong = [name for name, shape in clean.items() if found[name] != shape]
    return {"shapes": not wrong, "wrong_tensors": len(wrong), "tensors": len(clean)}


@functools.lru_cache(maxsize=1)
def _attacked(
    model: str, variant: str, ratio: float, seed: int, device: str
) -> tuple[dict[str, tuple[int, ...]], nn.Module]:
    clean = subject(model, device=device)
    example = zoo.example_input(model).to(device)
    result = attack(clean, example, variant, ratio=ratio, seed=seed, split_shares="random")
    return shapes(clean), result.model


def table(records: Sequence[Record]) -> str:
    """By model and disturbance: how many cases have all clean shapes."""
    models = sorted({record["model"] for record in records})
    noises = [noise for noise in NOISES if any(record["noise"] == noise for record in records)]
    lines = ["| model | " + " | ".join(noises) + " |", "|---|" + "---|" * len(noises)]
    for name in [*models, "all"]:
        cells = []
        for noise in noises:
            cell = [r["shapes"] for r in records if r["noise"] == noise and name in (r["model"], "all")]
            cells.append(f"{sum(cell)}/{len(cell)}" if cell else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def page(records: Sequence[Record]) -> str:
    """The page that is kept with the documentation."""
    ratios = ", ".join(f"{ratio:g}" for ratio in sorted({record["ratio"] for record in records}))
    return (
        "# Recovery from noisy weights\n\nMade by `python -m canon_benchmarks noise_curve` from `noise_curve.json`, at "
        f"ρ = {ratios}. Columns: relative Gaussian noise on every parameter after the attack, rounding to half "
        "precision and back, or noise relative to the deviation of each tensor. "
        "Cells: attacked models that come back with every clean shape.\n\n" + table(records)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; the status is 3 when some are still to do."""
    chosen = choose(arguments, __doc__, OUT, ratios=(0.2,), seeds=(0,), variants=ATTACKS)
    cases = [
        NoiseCase(model, variant, noise, seed, ratio)
        for model, variant, ratio, seed, noise in product(
            chosen.models, chosen.variants, chosen.ratios, chosen.seeds, NOISES
        )
    ]
    store = GridFile.open(chosen.out, KEYS)
    left = run_cases(cases, on_device(measure, chosen.device), store, jobs=chosen.jobs, minutes=chosen.minutes)
    text = page(list(store.records.values()))
    write_text(chosen.out.with_suffix(".md"), text, force=True)
    sys.stdout.write(text)
    return 3 if left else 0
