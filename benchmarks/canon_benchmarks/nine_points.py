"""`python -m canon_benchmarks nine_points`: nine kinds of hidden redundancy in the four models of the paper.

Every kind is injected by a primitive of its own, shuffled and scaled, and recovered blindly. What is recorded is
whether the lean model has every clean shape again, and how far its logits drift, in float64. Models have random weights
and random statistics of norms. Records are kept in one JSON file and a page is made from it; cases with a record are
not run again.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from canon import zoo
from canon._files import write_text
from canon.attacks import attack
from canon.bench.measures import exact_arithmetic
from canon.errors import AttackError, CanonError
from canon.recovery import recover
from canon_benchmarks.grid import GridFile, Record, run_cases
from canon_benchmarks.subjects import gap, inputs, logits, shapes, subject

MODELS: Final = ("resnet18", "efficientnet_b0", "inception_v3", "densenet121")
POINTS: Final = {
    "dead_range": "units dead by the range of their inputs",
    "odd_group": "`u` with `−u`, in groups that cancel",
    "tiny_column": "columns of 1e-12 to 1e-30",
    "noisy_clique": "cliques whose readers carry noise of 1e-5",
    "constant": "constants, behind zero padding read by inner taps",
    "wide_basis": "linear bases widened, and copies of negative sign",
    "endless": "a shift of −inf on a ReLU unit",
    "grown_kernel": "kernels grown by zeros, in one axis or both",
    "idle_layer": "layers that do nothing, shuffled and scaled",
    "idle_branch": "branches that add zero",
}
"""The primitive that injects each kind, and what it is."""

KEYS: Final = ("model", "point", "ratio", "seed")
OUT: Final = Path("docs/results/nine_points.json")


@dataclass(frozen=True)
class PointCase:
    """One kind of redundancy in one model."""

    model: str
    point: str
    ratio: float
    seed: int


def measure(case: PointCase) -> Record:
    """Inject, recover, and look at shapes and logits."""
    torch.set_num_threads(1)
    exact_arithmetic()
    clean, example = subject(case.model), zoo.example_input(case.model)
    try:
        attacked = attack(clean, example, [case.point], ratio=case.ratio, seed=case.seed).model
    except AttackError as error:
        return {"applies": False, "reason": error.message}
    given = inputs(case.model, case.seed)[:1]
    expected = logits(clean, given, torch.float64)
    try:
        found = recover(attacked, example)
    except CanonError as error:
        return {"applies": True, "shapes": False, "error": str(error)}
    lean = copy.deepcopy(found.lean())
    wanted = Counter(shapes(clean).values())
    return {
        "applies": True,
        "shapes": Counter(shapes(lean).values()) == wanted,
        "hidden": gap(logits(attacked, given, torch.float64), expected),
        "drift": gap(logits(lean, given, torch.float64), expected),
    }


def page(records: Sequence[Record]) -> str:
    """The page that is kept with the documentation."""
    lines = ["| kind | primitive | " + " | ".join(MODELS) + " |", "|---|---|" + "---|" * len(MODELS)]
    for point, about in POINTS.items():
        cells = []
        for model in MODELS:
            cells.append(_cell([r for r in records if r["model"] == model and r["point"] == point]))
        lines.append(f"| {about} | `{point}` | " + " | ".join(cells) + " |")
    ratios = ", ".join(f"{ratio:g}" for ratio in sorted({record["ratio"] for record in records}))
    return (
        "# Nine kinds of hidden redundancy\n\n"
        f"Made by `python -m canon_benchmarks nine_points` from `nine_points.json`, at ρ = {ratios}. "
        "Each kind is injected by one primitive, shuffled and scaled, and recovered blindly; models have random "
        "weights. Cells: whether every "
        "tensor of the lean model has its clean shape again, and how far logits are from those of the clean model in "
        "float64, relative to the largest. *none*: the model has no place for it.\n\n"
    ) + "\n".join([*lines, ""])


def _cell(records: Sequence[Record]) -> str:
    done = [record for record in records if record["applies"]]
    if not done:
        return "none" if records else ""
    good = sum(record["shapes"] for record in done)
    drift = max((record["drift"] for record in done if "drift" in record), default=float("nan"))
    return f"{good}/{len(done)}, {drift:.0e}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; the status is 3 when some are still to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, metavar="NAME", help="models to attack")
    parser.add_argument("--points", nargs="+", default=tuple(POINTS), choices=tuple(POINTS), metavar="NAME")
    parser.add_argument("--ratio", type=float, default=0.2, help="share of channels or layers that is added")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="begin no case after this time; run again to go on")
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file to write and to continue")
    chosen = parser.parse_args(arguments)
    cases = [PointCase(model, point, chosen.ratio, chosen.seed) for model in chosen.models for point in chosen.points]
    store = GridFile.open(chosen.out, KEYS)
    left = run_cases(cases, measure, store, jobs=1, minutes=chosen.minutes)
    text = page(list(store.records.values()))
    write_text(chosen.out.with_suffix(".md"), text, force=True)
    sys.stdout.write(text)
    return 3 if left else 0
