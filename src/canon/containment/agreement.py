"""Does the extracted model compute what the suspect computes? Both are run on random inputs."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Final

from torch import Tensor, nn

from canon.graph import probes
from canon.verify.function import outputs_of

PROBES: Final = 4
"""Random inputs to compare on."""


@dataclass(frozen=True)
class Agreement:
    """How far the outputs of two models are apart."""

    difference: float
    """Largest difference, relative to how far outputs lie from their mean over probes."""

    typical: float
    """Root of the mean squared difference, relative to the same of the outputs, counted from their mean."""

    same_decision: float
    """Share of places where the largest output is the same one."""

    probes: int
    """How many random inputs."""


def agreement(first: nn.Module, second: nn.Module, example: Tensor | tuple[Any, ...], *, seed: int = 0) -> Agreement:
    """Compare the outputs of two models; those of the first are what differences are measured by.

    A difference counts by how far outputs lie from their mean over probes, so that a large constant hides nothing.
    """
    calls = probes(example, PROBES, seed)
    a, b = (outputs_of(model, calls) for model in (first, second))
    if a.shape != b.shape:
        return Agreement(inf, inf, 0.0, len(a))
    around = a - a.mean(dim=0)
    gap, spread = float((a - b).abs().max()), float(around.abs().max()) or float(a.abs().max())
    same = float((a.argmax(dim=1) == b.argmax(dim=1)).double().mean()) if a.shape[1] > 1 else 1.0
    return Agreement(
        difference=_ratio(gap, spread),
        typical=_ratio(float((a - b).norm()), float(around.norm())),
        same_decision=same,
        probes=len(a),
    )


def _ratio(gap: float, size: float) -> float:
    if gap != gap or size != size:
        return float("inf")
    return gap / size if size > 0 else (0.0 if gap == 0 else float("inf"))
