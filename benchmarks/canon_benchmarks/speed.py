"""`python -m canon.bench`: what everything costs, as a table and as JSON.

Groups: `micro`, small measurements with a limit; `speed`, every step on the four models of the paper; `training`, the
time to train each of them on digits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from canon import zoo
from canon._environment import environment
from canon._files import write_text
from canon_benchmarks import performance
from canon_benchmarks.attack_time import measure_attack, measure_growth
from canon_benchmarks.clock import read_bandwidth
from canon_benchmarks.locate_time import measure_locate, measure_memory
from canon_benchmarks.micro import Measurement, save, table
from canon_benchmarks.performance_table import ratio_rows, seconds_rows, text_table
from canon_benchmarks.trace import measure_trace
from canon_benchmarks.training_time import measure_training

MEASUREMENTS: Final[tuple[Callable[[], Measurement], ...]] = (
    measure_trace,
    *(partial(measure_attack, name, variant) for name in zoo.PAPER_MODELS for variant in performance.SHORT),
    measure_growth,
    *(partial(measure, name) for measure in (measure_locate, measure_memory) for name in zoo.PAPER_MODELS),
)
"""Every micro-benchmark. Add yours here."""

GROUPS: Final = ("micro", "speed", "training")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the status is 1 when a small measurement is over its limit."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks speed", description=main.__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=["micro", "speed"], help="groups to measure")
    parser.add_argument("--full", action="store_true", help="all five attacks, not two")
    parser.add_argument("--models", nargs="+", default=list(zoo.PAPER_MODELS), metavar="NAME", help="for speed")
    parser.add_argument("--repeats", type=int, default=5, help="runs per step")
    parser.add_argument("--probe", type=int, default=1, help="runs of the probe method; 0 leaves it out")
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda")
    parser.add_argument("--threads", type=int, default=1, help="threads that torch may use")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder of the JSON files")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    within = True
    if "micro" in chosen.only:
        found = [measure() for measure in MEASUREMENTS]
        save(found, chosen.out / "micro.json")
        sys.stdout.write(table(found))
        within = all(measurement.within for measurement in found)
    if "speed" in chosen.only:
        _speed(chosen)
    if "training" in chosen.only:
        trained = [measure_training(name, chosen.device) for name in zoo.PAPER_MODELS]
        save(trained, chosen.out / "training.json")
        sys.stdout.write(table(trained))
    return 0 if within else 1


def _speed(chosen: argparse.Namespace) -> None:
    where: dict[str, Any] = {**environment(), "measured_on": chosen.device, "threads": torch.get_num_threads()}
    if chosen.device.startswith("cuda"):
        where["bandwidth"] = read_bandwidth(chosen.device)
    target = chosen.out / ("performance_cuda.json" if chosen.device.startswith("cuda") else "performance.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    records: list[performance.Record] = []

    def keep(record: performance.Record) -> None:
        records.append(record)
        write_text(target, json.dumps({"environment": where, "cases": records}, indent=1) + "\n", force=True)
        figures = ", ".join(f"{name} {value:g}" for name, value in record["ratios"].items())
        sys.stdout.write(f"{record['model']} {record['variant']} {record['ratio']}: {figures}\n")
        sys.stdout.flush()

    cases = performance.cases(chosen.models, full=chosen.full)
    performance.run(cases, device=chosen.device, repeats=chosen.repeats, probe=chosen.probe, report=keep)
    sys.stdout.write("\n" + text_table(seconds_rows(records)) + "\n" + text_table(ratio_rows(records)))
