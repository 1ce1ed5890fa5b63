"""From a case to its record: one file per kind of case."""

from __future__ import annotations

import torch

from canon.bench.cases import Case
from canon.bench.extensions import part_of
from canon.bench.lab import Setup
from canon.bench.machine import machine
from canon.bench.measures.attacked import Refused
from canon.bench.measures.sheet import Sheet
from canon.bench.records import Outcome, Record


def measure(case: Case, threads: int = 1, *, setup: Setup) -> Record:
    """Measure one case. Whatever goes wrong in it is written into its record."""
    torch.set_num_threads(threads)
    exact_arithmetic()
    sheet = Sheet(setup.device)
    outcome: Outcome = "done"
    error = None
    try:
        part_of(case.kind, "measure")(case, setup, sheet)
    except Refused as refusal:
        outcome, error = "refused", str(refusal)
    except Exception as fault:
        outcome, error = "failed", f"{type(fault).__name__}: {fault}"
    sheet.finish()
    if setup.device.startswith("cuda"):
        torch.cuda.empty_cache()
    where = machine() | ({} if setup.device.startswith("cuda") else {"device": "cpu"})
    return Record(case, outcome, sheet.metrics, sheet.seconds, where, error)


def exact_arithmetic() -> None:
    """Keep CUDA from computing float32 products with ten bits (TF32), which it does for convolutions by default."""
    if torch.cuda.is_available():
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
