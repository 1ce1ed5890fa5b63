"""Does the extracted model compute what the suspect computes? Both are run on random inputs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

PROBES: Final = 4
"""Random inputs to compare on."""

HALVES: Final = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Agreement:
    """How far the outputs of two models are apart."""

    difference: float
    """Largest difference, relative to the largest output."""

    typical: float
    """Root of the mean squared difference, relative to the same of the outputs, counted from their mean."""

    same_decision: float
    """Share of places where the largest output is the same one."""

    probes: int
    """How many random inputs."""


def agreement(first: nn.Module, second: nn.Module, example: Tensor | tuple[Any, ...], *, seed: int = 0) -> Agreement:
    """Compare the outputs of two models; those of the first are what differences are measured by."""
    given = example if isinstance(example, tuple) else (example,)
    generator = torch.Generator().manual_seed(seed)
    kinds = {p.dtype for p in (*first.parameters(), *second.parameters()) if p.is_floating_point()}
    # Half precision is for storage: its own rounding would drown what is to be seen.
    wide = None if len(kinds) == 1 and not kinds & set(HALVES) else torch.float32
    device = next((p.device for p in first.parameters()), torch.device("cpu"))
    inputs = [_like(x, generator, device, wide or next(iter(kinds))) if isinstance(x, Tensor) else x for x in given]
    with torch.no_grad():
        a, b = (_tensors(_run(model, inputs, wide)) for model in (first, second))
    gap = size = squares = whole = 0.0
    same = count = 0
    for x, y in zip(a, b, strict=True):
        x, y = x.double(), y.double()
        gap, size = max(gap, float((x - y).abs().max())), max(size, float(x.abs().max()))
        squares += float((x - y).square().sum())
        whole += float((x - x.mean(dim=0, keepdim=True)).square().sum())
        if x.ndim > 1 and x.shape[1] > 1:
            same += int((x.argmax(dim=1) == y.argmax(dim=1)).sum())
            count += x.argmax(dim=1).numel()
    probes = next((x.shape[0] for x in inputs if isinstance(x, Tensor) and x.ndim), 1)
    return Agreement(
        difference=_ratio(gap, size),
        typical=_ratio(squares**0.5, whole**0.5),
        same_decision=same / count if count else 1.0,
        probes=probes,
    )


def _ratio(gap: float, size: float) -> float:
    if gap != gap or size != size:
        return float("inf")
    return gap / size if size > 0 else (0.0 if gap == 0 else float("inf"))


def _run(model: nn.Module, inputs: list[Any], wide: torch.dtype | None) -> Any:
    return (model if wide is None else copy.deepcopy(model).to(wide))(*inputs)


def _like(x: Tensor, generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
    if not x.is_floating_point() or x.ndim == 0:
        return x.to(device)
    return torch.randn((PROBES, *x.shape[1:]), generator=generator, dtype=torch.float64).to(device, dtype)


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [tensor for item in output for tensor in _tensors(item)]
    return []
