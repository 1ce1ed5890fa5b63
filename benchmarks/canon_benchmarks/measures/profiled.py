"""Where the time of a recovery goes, function by function."""

from __future__ import annotations

import cProfile
import pstats
import time
from pathlib import Path
from typing import Any, Final

from canon import zoo
from canon.bench.lab import Setup
from canon.bench.measures.attacked import count
from canon.bench.measures.sheet import Sheet
from canon.recovery import recover
from canon_benchmarks.cases import Profiled
from canon_benchmarks.measures.clock import time_of
from canon_benchmarks.measures.speed import attacked
from canon_benchmarks.subjects import subject

SHOWN: Final = 12
"""Functions in a profile."""


def measure_profiled(case: Profiled, setup: Setup, sheet: Sheet) -> None:
    """The functions that take most of the process's own time, in seconds, and the time without a profiler."""
    clean, example = subject(case.model), zoo.example_input(case.model)
    _, model = attacked(case, clean, example)
    seconds = time_of(lambda: recover(model, example), repeats=3, device="cpu").median
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(recover, model, example)
    stats: Any = pstats.Stats(profiler)
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:SHOWN]
    functions = [[_name(*where), figures[1], round(figures[2], 3), round(figures[3], 3)] for where, figures in rows]
    sheet.note(parameters=count(model), calls=stats.total_calls, recover=round(seconds, 3), functions=functions)


def _name(file: str, line: int, function: str) -> str:
    """Where a function stands, without the folders of this machine."""
    if file == "~":
        return function.strip("<>").removeprefix("built-in ")
    parts = Path(file).with_suffix("").parts
    for package in ("canon", "torch"):
        if package in parts:
            return ".".join([*parts[parts.index(package) :], function])
    return f"{parts[-1]}.{function}"
