"""`python -m canon_benchmarks recovery_grid`: every attack on every model, recovered, and held against the clean model.

All camouflage is on: permutation, scaling, expanded kernels, random split shares, chained dummies. A case is good when
every tensor has the clean shape and the logits agree with the clean model's to 1e-5 in float32. Records are kept in one
JSON file and a table is made from it; cases with a record are not run again. Attacks that would pass 10⁹ parameters are
tried without expanded kernels, and where that is still too much, listed as left out.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from canon import zoo
from canon.bench.measures import exact_arithmetic
from canon.bench.measures.attacked import count
from canon.errors import CanonError
from canon.recovery import recover
from canon_benchmarks.grid import Record
from canon_benchmarks.model_grid import GridCase, attacked_model, choose, run_grid
from canon_benchmarks.subjects import MODELS, VARIANTS, gap, inputs, logits, subject
from canon_benchmarks.subjects import shapes as shapes_of

LIMIT: Final = 1e-5
"""Largest difference of logits from the clean model's, in float32."""

OUT: Final = Path("docs/results/recovery_grid.json")


def measure(case: GridCase, device: str = "cpu") -> Record:
    """Attack, recover and compare."""
    torch.set_num_threads(1)
    exact_arithmetic()
    clean = _clean(case.model, device)
    example = zoo.example_input(case.model).to(device)
    record: Record = {"clean": count(clean)}
    started = _now(device)
    attacked, refusal = attacked_model(clean, example, case)
    if attacked is None:
        return {**record, "left_out": refusal}
    record |= {"attacked": count(attacked), "attack_seconds": round(_now(device) - started, 3)}
    if refusal is not None:
        record["kernels"] = "not expanded"
    started = _now(device)
    try:
        result = recover(attacked, example)
    except CanonError as error:
        return {**record, "good": False, "error": str(error)}
    seconds = round(_now(device) - started, 3)
    del attacked
    given = inputs(case.model, case.seed)
    same = shapes_of(result.model) == shapes_of(clean)
    single = gap(logits(result.model, given), _expected(case.model, case.seed, device))
    double = gap(logits(result.model, given, torch.float64), logits(clean, given, torch.float64))
    return record | {
        "recovered": count(result.model),
        "recover_seconds": seconds,
        "shapes": same,
        "gap": float(f"{single:.3g}"),
        "gap_float64": float(f"{double:.3g}"),
        "good": same and single <= LIMIT,
    }


@functools.lru_cache(maxsize=2)
def _clean(name: str, device: str) -> nn.Module:
    return subject(name, device=device)


@functools.lru_cache(maxsize=8)
def _expected(name: str, seed: int, device: str) -> Tensor:
    return logits(_clean(name, device), inputs(name, seed))


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def table(records: Sequence[Record]) -> str:
    """The grid as Markdown: per cell how many seeds are good, and the worst difference of logits."""
    cells: dict[tuple[str, float, str], list[Record]] = {}
    for record in records:
        cells.setdefault((record["model"], record["ratio"], record["variant"]), []).append(record)
    variants = [v for v in VARIANTS if any(key[2] == v for key in cells)]
    lines = ["| model | ρ | " + " | ".join(variants) + " |", "|---|---|" + "---|" * len(variants)]
    known = [name for name in MODELS if any(key[0] == name for key in cells)]
    for name in known:
        for ratio in sorted({key[1] for key in cells if key[0] == name}):
            row = [_cell(cells.get((name, ratio, variant), [])) for variant in variants]
            lines.append(f"| {name} | {ratio:g} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _cell(records: Sequence[Record]) -> str:
    if not records:
        return ""
    run = [record for record in records if "left_out" not in record]
    if not run:
        return "left out"
    good = sum(record["good"] for record in run)
    worst = max((record["gap"] for record in run if "gap" in record), default=float("nan"))
    left = f", {len(records) - len(run)} left out" if len(run) < len(records) else ""
    return f"{good}/{len(run)}, {worst:.0e}{left}"


def summary(records: Sequence[Record]) -> str:
    """The grid in one paragraph."""
    run = [record for record in records if "left_out" not in record]
    good = sum(record["good"] for record in run)
    plain = sum("kernels" in record for record in run)
    text = f"{good} of {len(run)} cases are good."
    if plain:
        text += f" {plain} were run without expanded kernels, which would have passed 10⁹ parameters."
    if len(run) < len(records):
        text += f" {len(records) - len(run)} are left out: the attack was refused."
    timed = [record["recover_seconds"] for record in run if "recover_seconds" in record]
    if timed:
        text += f" Recovery took {sorted(timed)[len(timed) // 2]:.2g} s in the median, {max(timed):.2g} s at most."
    return text


def page(records: Sequence[Record]) -> str:
    """The page that is kept with the documentation."""
    left = [r for r in records if "left_out" in r]
    lines = [f"- {r['model']}, {r['variant']}, ρ = {r['ratio']:g}, seed {r['seed']}: {r['left_out']}" for r in left]
    return "\n".join([
        "# Recovery over the full grid", "",
        "Made by `python -m canon_benchmarks recovery_grid` from `recovery_grid.json`. Every cell: seeds "
        "whose recovered "
        "model has every clean shape and the clean logits to 1e-5, and the largest relative difference of logits in "
        "float32.",
        "", summary(records), "", table(records), "## Left out", "", *(lines or ["Nothing."]), "",
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid; the status is 1 when a case is not good, 3 when some are still to do."""
    return run_grid(choose(arguments, __doc__, OUT), measure, page, summary)
