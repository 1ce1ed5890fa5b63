"""`python -m canon.bench.recovery_grid`: every attack on every model, recovered, and held against the clean model.

All camouflage is on: permutation, scaling, expanded kernels, random split shares, chained dummies. A case is good when
every tensor has the clean shape and the logits agree with the clean model's to 1e-5 in float32. Records are kept in one
JSON file and a table is made from it; cases with a record are not run again. Attacks that would pass 10⁹ parameters are
tried without expanded kernels, and where that is still too much, listed as left out.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon import zoo
from canon._files import write_text
from canon.attacks import attack
from canon.bench.grid import Record, Store, run_cases
from canon.bench.subjects import MODELS, RATIOS, SEEDS, VARIANTS, count, exact_arithmetic, gap, inputs, logits, subject
from canon.bench.subjects import shapes as shapes_of
from canon.errors import AttackError, CanonError
from canon.recovery import recover

KEYS: Final = ("model", "variant", "ratio", "seed")
LIMIT: Final = 1e-5
"""Largest difference of logits from the clean model's, in float32."""

OUT: Final = Path("docs/results/recovery_grid.json")


@dataclass(frozen=True)
class GridCase:
    """One attack on one model."""

    model: str
    variant: str
    ratio: float
    seed: int


def measure(case: GridCase, device: str = "cpu") -> Record:
    """Attack, recover and compare."""
    torch.set_num_threads(1)
    exact_arithmetic()
    clean = _clean(case.model, device)
    example = zoo.example_input(case.model).to(device)
    record: Record = {"clean": count(clean)}
    started = _now(device)
    attacked, refusal = _attacked(clean, example, case)
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


def _attacked(clean: nn.Module, example: Tensor, case: GridCase) -> tuple[nn.Module | None, str | None]:
    """The attacked model, and why it was refused with expanded kernels, or altogether.

    Expanded kernels multiply the parameters by up to nine; where that is too many, the case is run without them.
    """
    refusal = None
    for expand in (True, False):
        try:
            result = attack(
                clean, example, case.variant, ratio=case.ratio, seed=case.seed, permute=True, scale=True,
                expand_kernels=expand, split_shares="random", chain=True,
            )  # fmt: skip
        except AttackError as error:
            refusal = error.message
        else:
            return result.model, refusal
    return None, refusal


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
        "Made by `python -m canon.bench.recovery_grid` from `recovery_grid.json`. Every cell: seeds whose recovered "
        "model has every clean shape and the clean logits to 1e-5, and the largest relative difference of logits in "
        "float32.",
        "", summary(records), "", table(records), "## Left out", "", *(lines or ["Nothing."]), "",
    ])  # fmt: skip


def choose(
    arguments: Sequence[str] | None,
    description: str | None,
    out: Path,
    *,
    models: Sequence[str] = MODELS,
    ratios: Sequence[float] = RATIOS,
    seeds: Sequence[int] = SEEDS,
    variants: Sequence[str] = VARIANTS,
) -> argparse.Namespace:
    """Read the options that a grid over models has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--models", nargs="+", default=models, choices=MODELS, metavar="NAME", help="models to attack")
    parser.add_argument("--variants", nargs="+", default=variants, choices=VARIANTS, metavar="NAME", help="attacks")
    parser.add_argument("--ratios", nargs="+", type=float, default=ratios, help="shares of channels that are added")
    parser.add_argument("--seeds", nargs="+", type=int, default=seeds, help="seeds of the attacks")
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run beside each other")
    parser.add_argument("--minutes", type=float, help="begin no case after this time; run again to go on")
    parser.add_argument("--out", type=Path, default=out, help="the JSON file to write and to continue")
    return parser.parse_args(arguments)


def on_device(function: Callable[..., Record], device: str) -> Callable[[Any], Record]:
    """A measurement on a device, in a form that other processes can take."""
    return functools.partial(function, device=device)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid; the status is 1 when a case is not good, 3 when some are still to do."""
    chosen = choose(arguments, __doc__, OUT)
    cases = [
        GridCase(model, variant, ratio, seed)
        for ratio, model, variant, seed in product(chosen.ratios, chosen.models, chosen.variants, chosen.seeds)
    ]
    store = Store.open(chosen.out, KEYS)
    left = run_cases(cases, on_device(measure, chosen.device), store, jobs=chosen.jobs, minutes=chosen.minutes)
    records = list(store.records.values())
    write_text(chosen.out.with_suffix(".md"), page(records), force=True)
    sys.stdout.write(summary(records) + (f" {left} still to do.\n" if left else "\n"))
    if any(not record.get("good", True) for record in records):
        return 1
    return 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
