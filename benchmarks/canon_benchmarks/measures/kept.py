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
from canon_benchmarks.subjects import gap

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
    model = zoo.model(name)
    randomize_norms(model)
    fill_empty_weights(model)
    wanted = getattr(torch, dtype)
    return model.to(device, wanted), zoo.example_input(name).to(device, wanted)


@torch.no_grad()
def randomize_norms(model: nn.Module, seed: int = 1) -> None:
    """Give the norms of a new model statistics as training would: without them, mistakes about norms do not show."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: Tensor, spread: float, centre: float) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * spread + centre)

    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is not None and module.running_var is not None:
                draw(module.running_mean, 0.1, 0.0)
                module.running_var.copy_(torch.rand(module.running_var.shape, generator=generator) + 0.5)
            if module.affine:
                draw(module.weight, 0.3, 1.0)
                draw(module.bias, 0.1, 0.0)


@torch.no_grad()
def fill_empty_weights(model: nn.Module, seed: int = 2) -> None:
    """Fill weights that begin as nothing: heads of zeros, layer scales of a millionth.

    A layer that is multiplied by nothing shows no mistake. Biases of zero stay: they would only drown the differences.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1 and float(parameter.abs().max()) < 1e-3:
            noise = torch.randn(parameter.shape, generator=generator)
            scale = parameter.numel() == parameter.shape[0]
            parameter.copy_(0.5 + 0.1 * noise if scale else noise * parameter[0].numel() ** -0.5)
