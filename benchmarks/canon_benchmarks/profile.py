"""`python -m canon_benchmarks profile`: where the time of a recovery goes, function by function."""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from canon import zoo
from canon._environment import environment
from canon._files import write_text
from canon.bench.measures.attacked import count
from canon.recovery import recover
from canon_benchmarks.clock import time_of
from canon_benchmarks.performance import Case, attacked
from canon_benchmarks.subjects import VARIANTS, subject

SHOWN = 12
"""Functions in a profile."""


def profile(case: Case) -> dict[str, Any]:
    """The functions that take most of the process's own time, in seconds, and the time without a profiler."""
    clean, example = subject(case.model), zoo.example_input(case.model)
    _, model = attacked(case, clean, example)
    seconds = time_of(lambda: recover(model, example), repeats=3, device="cpu").median
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(recover, model, example)
    stats: Any = pstats.Stats(profiler)
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:SHOWN]
    functions = [[_name(*where), figures[1], round(figures[2], 3), round(figures[3], 3)] for where, figures in rows]
    return {
        "case": case.name,
        "parameters": count(model),
        "calls": stats.total_calls,
        "seconds": round(seconds, 3),
        "functions": functions,
    }


def _name(file: str, line: int, function: str) -> str:
    """Where a function stands, without the folders of this machine."""
    if file == "~":
        return function.strip("<>").removeprefix("built-in ")
    parts = Path(file).with_suffix("").parts
    for package in ("canon", "torch"):
        if package in parts:
            return ".".join([*parts[parts.index(package) :], function])
    return f"{parts[-1]}.{function}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile one case, print it and keep it."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks profile", description=main.__doc__)
    parser.add_argument("model", nargs="?", default="densenet121")
    parser.add_argument("variant", nargs="?", default="mix-opseq", choices=VARIANTS)
    parser.add_argument("ratio", nargs="?", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/profile.json"), help="file to write")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = profile(Case(chosen.model, chosen.variant, chosen.ratio))
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(chosen.out, json.dumps({"environment": environment(), **found}, indent=1) + "\n", force=True)
    lines = [f"{own:8.3f} {whole:8.3f} {calls:8d}  {name}" for name, calls, own, whole in found["functions"]]
    sys.stdout.write(f"{found['case']}: {found['seconds']} s\n     own    whole    calls\n" + "\n".join(lines) + "\n")
    return 0
