"""How much noise on the weights recovery stands."""

from __future__ import annotations

import copy
import functools

import torch
from torch import nn

from canon import zoo
from canon.attacks import attack
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet
from canon.errors import CanonError
from canon.recovery import recover
from canon_benchmarks.cases import Noisy
from canon_benchmarks.measures.hidden import clean_model, example_of
from canon_benchmarks.subjects import shapes


def measure_noisy(case: Noisy, setup: Setup, sheet: Sheet) -> None:
    """Disturb, recover, and look at the shapes."""
    clean = shapes(clean_model(case.model, setup.device))
    attacked = _attacked(case.model, case.attack, case.ratio, case.seed, setup.device)
    try:
        found = shapes(recover(disturb(attacked, case.noise, case.seed), example_of(case, setup)).model)
    except CanonError as error:
        sheet.note(shapes=False, error=str(error))
        return
    wrong = sum(found[name] != shape for name, shape in clean.items())
    sheet.note(shapes=not wrong, wrong_tensors=wrong, tensors=len(clean))


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


@functools.lru_cache(maxsize=1)
def _attacked(name: str, variant: str, ratio: float, seed: int, device: str) -> nn.Module:
    clean, example = clean_model(name, device), zoo.example_input(name).to(device)
    return attack(clean, example, variant, ratio=ratio, seed=seed, split_shares="random").model
