"""From a case to its record: one file per kind of case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from canon.bench.cases import Case
from canon.bench.environment import environment
from canon.bench.lab import Setup
from canon.bench.measures.attacked import Refused
from canon.bench.measures.baselines import measure_baseline
from canon.bench.measures.changed import measure_changed
from canon.bench.measures.clean import measure_clean
from canon.bench.measures.methods import measure_methods
from canon.bench.measures.recovery import measure_recovery
from canon.bench.measures.runtime import measure_runtime
from canon.bench.measures.sheet import Sheet
from canon.bench.measures.tolerance import measure_tolerance
from canon.bench.measures.training import measure_training
from canon.bench.records import Outcome, Record
from canon.bench.subjects import exact_arithmetic

MEASURES: Final[dict[str, Callable[[Any, Setup, Sheet], None]]] = {
    "training": measure_training,
    "recovery": measure_recovery,
    "methods": measure_methods,
    "tolerance": measure_tolerance,
    "changed": measure_changed,
    "clean": measure_clean,
    "runtime": measure_runtime,
    "baseline": measure_baseline,
}
"""By kind of case."""


def measure(case: Case, threads: int = 1, *, setup: Setup) -> Record:
    """Measure one case. Whatever goes wrong in it is written into its record."""
    torch.set_num_threads(threads)
    exact_arithmetic()
    sheet = Sheet(setup.device)
    outcome: Outcome = "done"
    error = None
    try:
        MEASURES[case.kind](case, setup, sheet)
    except Refused as refusal:
        outcome, error = "refused", str(refusal)
    except Exception as fault:
        outcome, error = "failed", f"{type(fault).__name__}: {fault}"
    sheet.finish()
    if setup.device.startswith("cuda"):
        torch.cuda.empty_cache()
    where = environment() | ({} if setup.device.startswith("cuda") else {"device": "cpu"})
    return Record(case, outcome, sheet.metrics, sheet.seconds, where, error)
