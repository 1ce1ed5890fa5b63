"""Does the extracted model compute what the suspect computes? Both are run on random inputs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.errors import VerificationError
from canon.graph import probes
from canon.verify.function import outputs_of
from canon.verify.precision import Precision

PROBES: Final = 4
"""Random inputs to compare on."""

SEEN: Final = 4e-3
"""Outputs that move by less than this part of their size are compared by it: float32 would show rounding otherwise."""


@dataclass(frozen=True)
class Agreement:
    """How far the outputs of two models are apart."""

    difference: float
    """Largest difference, relative to how far outputs lie from their mean over probes, as far as that can be seen."""

    typical: float
    """Root of the mean squared difference, relative to the same of the outputs, counted from their mean."""

    same_decision: float
    """Share of places where the largest output is the same one."""

    probes: int
    """How many random inputs."""


def outputs_on_probes(model: nn.Module, example: Tensor | tuple[Any, ...], *, seed: int = 0) -> Tensor:
    """What a model computes on some random inputs, the same for every model; at once, where it takes so many."""
    calls = probes(example, PROBES, seed)
    if len(calls) > 1 and len(calls[0]) == 1 and isinstance(calls[0][0], Tensor):
        with suppress(VerificationError):
            whole = torch.cat([x for (x,) in calls])
            found = outputs_of(model, [(whole,)]).values
            if len(found) == len(whole):
                return found
    return outputs_of(model, calls).values


def agreement(first: Tensor, second: Tensor, precision: Precision | None = None) -> Agreement:
    """Compare the outputs of two models on the same inputs; the first are what differences are measured by.

    A difference counts by how far outputs lie from their mean over probes, so that a large constant hides nothing but
    a few roundings of the coarser type of both.
    """
    if first.shape != second.shape:
        return Agreement(inf, inf, 0.0, len(first))
    around, apart = first - first.mean(dim=0), first - second
    seen = float(apart.abs().max()) - (0.0 if precision is None else precision.tolerance(0) * float(first.abs().max()))
    same = float((first.argmax(dim=1) == second.argmax(dim=1)).double().mean()) if first.shape[1] > 1 else 1.0
    return Agreement(
        difference=_ratio(seen, float(torch.maximum(around.abs().max(), SEEN * first.abs().max()))),
        typical=_ratio(float(apart.norm()), float(torch.maximum(around.norm(), SEEN * first.norm()))),
        same_decision=same,
        probes=len(first),
    )


def correlation(first: Tensor, second: Tensor) -> float:
    """How alike outputs of two models move with the input, whatever their sizes: 1 if they are multiples; 0 where that
    cannot be told."""
    if first.shape != second.shape or len(first) < 2:
        return 0.0
    first, second = (x.double() - x.double().mean(dim=0) for x in (first, second))
    size = float(first.norm() * second.norm())
    return float((first * second).sum()) / size if size > 0 else 0.0


def _ratio(gap: float, size: float) -> float:
    if gap != gap or size != size:
        return float("inf")
    if gap <= 0:
        return 0.0
    return gap / size if size > 0 else float("inf")
