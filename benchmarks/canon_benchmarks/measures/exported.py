"""Hidden models sent through the tools that make ONNX files, and judged."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from canon import zoo
from canon.attacks import attack
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet
from canon.io import load
from canon_benchmarks.cases import Exported
from canon_benchmarks.exports import write
from canon_benchmarks.measures.changed import RELATED
from canon_benchmarks.measures.judged import judge_both_ways, owned

RATIO: Final = 0.2


def measure_exported(case: Exported, setup: Setup, sheet: Sheet) -> None:
    """Write one file and judge it."""
    example = zoo.example_input(case.model)
    reference, key = owned(case.model)
    hidden = attack(reference, example, "mix-opseq", ratio=RATIO, seed=0).model
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "suspect.onnx"
        write(hidden, example, path, case.exporter, case.then, fold=case.norms == "folded")
        sheet.note(bytes=path.stat().st_size)
        suspect = load(path)
    judge_both_ways(sheet, suspect, example, reference, key, RELATED)
