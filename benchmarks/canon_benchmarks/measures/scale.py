"""How recovery, or locating the owner's model, grows from 10⁷ to 10⁹ parameters.

Four families of generated networks: convolutions and linear layers, few wide ones and many narrow ones. Each is
attacked with three primitives, and recovered or searched for the owner's. Times are those of the process, so that a
busy machine counts less; with one thread on an idle one they are what the clock shows.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from canon.attacks import attack
from canon.bench.lab import Setup
from canon.bench.measures.attacked import count
from canon.bench.measures.sheet import Sheet
from canon.containment import locate
from canon.recovery import recover
from canon_benchmarks.cases import Scale
from canon_benchmarks.measures.clock import peak_extra_bytes

PRIMITIVES: Final = ("nso_zero", "nso_clique", "nso_split")
RATIO: Final = 0.1
GROWTH: Final = (1 + RATIO) ** (2 * len(PRIMITIVES))
"""By what an attack multiplies the parameters, about."""

REPEATED: Final = 5e7
"""Models larger than this are measured once, smaller ones three times."""


def convolutions(depth: int, size: float) -> tuple[nn.Module, Tensor]:
    """A network of `depth` convolutions with about `size` parameters, and an input."""
    width = round(math.sqrt(size / (9 * depth)))
    layers: list[nn.Module] = []
    for before in [3] + [width] * depth:
        layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * width, 10)).eval(), torch.zeros(1, 3, 2, 2)


def linears(depth: int, size: float) -> tuple[nn.Module, Tensor]:
    """A network of `depth` linear layers with about `size` parameters, and an input."""
    width = round(math.sqrt(size / depth))
    layers: list[nn.Module] = []
    for before in [32] + [width] * depth:
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)).eval(), torch.zeros(1, 32)


FAMILIES: Final[dict[str, tuple[Callable[[int, float], tuple[nn.Module, Tensor]], int]]] = {
    "wide convolutions": (convolutions, 8),
    "deep convolutions": (convolutions, 64),
    "wide linear layers": (linears, 6),
    "deep linear layers": (linears, 48),
}


def measure_scale(case: Scale, setup: Setup, sheet: Sheet) -> None:
    """Attack one network, and recover it or locate the owner's in it; seconds are those of the process."""
    device = setup.device
    build, depth = FAMILIES[case.family]
    torch.manual_seed(0)
    clean, example = build(depth, case.size / GROWTH)
    shapes = [tuple(p.shape) for p in clean.parameters()]
    example = example.to(device)
    model = attack(clean.to(device), example, PRIMITIVES, ratio=RATIO, max_parameters=2 * 10**9).model
    owner = clean if case.step == "locate" else None
    del clean
    seconds, extra, same, size_of_made = [], 0, True, 0

    def run() -> None:
        nonlocal same, size_of_made
        started = time.process_time() if device == "cpu" else time.perf_counter()
        made = recover(model, example).model if owner is None else _extracted(model, owner, example)
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append((time.process_time() if device == "cpu" else time.perf_counter()) - started)
        same = same and [tuple(p.shape) for p in made.parameters()] == shapes
        size_of_made = 4 * count(made)

    for _ in range(3 if case.size < REPEATED else 1):
        extra = max(extra, peak_extra_bytes(run, device) or 0)
    median = round(statistics.median(seconds), 4)
    sheet.note(
        parameters=count(model), seconds=median, runs=len(seconds), peak_extra_bytes=extra, made_bytes=size_of_made,
        good=same,
    )  # fmt: skip


def _extracted(model: nn.Module, owner: nn.Module, example: Tensor) -> nn.Module:
    found = locate(model, owner, example).model
    assert found is not None, "the suspect was made from the owner's model"
    return found
