"""`python -m canon_benchmarks scale`: how recovery, or locating the owner's model, grows from 10⁷ to 10⁹ parameters.

Four families of generated networks: convolutions and linear layers, few wide ones and many narrow ones. Each is
attacked with three primitives, and recovered or searched for the owner's; time and peak memory are kept with the slope
of a line through their logarithms. The largest need about 16 GB. Times are those of the process, so that a busy machine
counts less; with one thread on an idle one they are what the clock shows.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from canon._environment import environment
from canon._files import write_text
from canon.attacks import attack
from canon.bench.measures import exact_arithmetic
from canon.bench.measures.attacked import count
from canon.containment import locate
from canon.recovery import recover
from canon_benchmarks.clock import peak_extra_bytes
from canon_benchmarks.scale_plot import plot

SIZES: Final = (1e7, 3e7, 1e8, 3e8, 1e9)
"""Parameters of the attacked models, about."""

PRIMITIVES: Final = ("nso_zero", "nso_clique", "nso_split")
RATIO: Final = 0.1
GROWTH: Final = (1 + RATIO) ** (2 * len(PRIMITIVES))
"""By what an attack multiplies the parameters, about."""

REPEATED: Final = 5e7
"""Models larger than this are measured once, smaller ones three times."""

SLOPE: Final = 1.1
"""The steepest that time may grow."""

Record = dict[str, Any]


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


def measure(family: str, size: float, device: str = "cpu", step: str = "recover") -> Record:
    """Attack one network, and recover it or locate the owner's in it."""
    exact_arithmetic()
    build, depth = FAMILIES[family]
    torch.manual_seed(0)
    clean, example = build(depth, size / GROWTH)
    shapes = [tuple(p.shape) for p in clean.parameters()]
    example = example.to(device)
    model = attack(clean.to(device), example, PRIMITIVES, ratio=RATIO, max_parameters=2 * 10**9).model
    owner = clean if step == "locate" else None
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

    for _ in range(3 if size < REPEATED else 1):
        extra = max(extra, peak_extra_bytes(run, device) or 0)
    return {
        "family": family,
        "parameters": count(model),
        "seconds": round(statistics.median(seconds), 4),
        "runs": len(seconds),
        "peak_extra_bytes": extra,
        "made_bytes": size_of_made,
        "clean_shapes": same,
    }


def _extracted(model: nn.Module, owner: nn.Module, example: Tensor) -> nn.Module:
    found = locate(model, owner, example).model
    assert found is not None, "the suspect was made from the owner's model"
    return found


def slope(records: Sequence[Record]) -> float:
    """Of the logarithm of time over that of parameters."""
    x = np.log([record["parameters"] for record in records])
    y = np.log([record["seconds"] for record in records])
    return float(np.polyfit(x, y, 1)[0])


def slopes(records: Sequence[Record]) -> dict[str, float]:
    """By family that has more than one size, and for all together."""
    found = {}
    for family in FAMILIES:
        mine = [record for record in records if record["family"] == family]
        if len(mine) > 1:
            found[family] = round(slope(mine), 3)
    if found:
        found["all"] = round(slope(records), 3)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the records and the plot; the status is 1 when time grows too fast."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks scale", description=main.__doc__)
    parser.add_argument("--sizes", nargs="+", type=float, default=list(SIZES), help="parameters, about")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES), metavar="NAME")
    parser.add_argument("--step", choices=["recover", "locate"], default="recover", help="what to measure")
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/scale.json"), help="file to write")
    parser.add_argument("--more", action="store_true", help="add to what the file holds")
    parser.add_argument("--plot-only", action="store_true", help="draw what the file holds, and measure nothing")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    records: list[Record] = []
    if chosen.plot_only or chosen.more:
        records = json.loads(chosen.out.read_text(encoding="utf-8"))["records"]
    if not chosen.plot_only:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        for size in sorted(chosen.sizes):
            for family in chosen.families:
                records.append(measure(family, size, chosen.device, chosen.step))
                document = {"environment": environment(), "slopes": slopes(records), "records": records}
                write_text(chosen.out, json.dumps(document, indent=1) + "\n", force=True)
                sys.stdout.write(f"{json.dumps(records[-1])}\n")
                sys.stdout.flush()
    found = slopes(records)
    sys.stdout.write("".join(f"slope, {name}: {value:g}\n" for name, value in found.items()))
    plot(records, found, chosen.out.with_suffix(".svg"), chosen.step)
    return 0 if all(value <= SLOPE for value in found.values()) else 1
