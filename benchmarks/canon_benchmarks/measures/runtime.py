"""How long recovery takes."""

from __future__ import annotations

import statistics

from canon.bench.cases import CLEAN
from canon.bench.lab import Setup, owner
from canon.bench.measures.attacked import attacked_model, count
from canon.bench.measures.sheet import Sheet
from canon.recovery import ProbeOptions, recover
from canon_benchmarks.cases import Runtime


def measure_runtime(case: Runtime, setup: Setup, sheet: Sheet) -> None:
    """Recover several times; the first time is not counted, as a device and its libraries are loaded in it."""
    mine = owner(setup, case.training)
    suspect = mine.model if case.attack == CLEAN else attacked_model(case, mine, sheet)
    options = ProbeOptions(probes=case.probes, batch_size=case.batch) if case.method == "probe" else None
    times = []
    for _ in range(case.repeats + 1):
        sheet.begin()
        result = recover(suspect, mine.example, case.method, options=options)
        times.append(round(sheet.lap("recover"), 4))
    sheet.seconds["recover"] = statistics.median(times[1:])
    stages = {f"recover_{stage}": round(took, 4) for stage, took in result.report.seconds.items()}
    sheet.seconds.update(stages)
    recovered = count(result.model) == count(mine.model)
    sheet.note(
        parameters_suspect=count(suspect), parameters_recovered=count(result.model), good=recovered, widths_given=False
    )
