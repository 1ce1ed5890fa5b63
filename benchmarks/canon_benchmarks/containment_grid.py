"""`python -m canon_benchmarks containment_grid`: the owner's network found in attacked and then changed models.

Every attack on every model of the recovery grid, permuted and scaled, then nothing, noise, rounding and pruning. Each
suspect is searched with the owner's model, with its layout key, and with its robust layout key. A case is good when
coverage is at least 0.99 by the model and 0.95 by the robust key; what the plain key reaches is measured and told.
Records are kept in one JSON file and a page is made from it; cases with a record are not run again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import nn

from canon import zoo
from canon.attacks import attack
from canon.attacks.after import parse
from canon.bench.measures import exact_arithmetic
from canon.bench.measures.attacked import count
from canon.containment import locate
from canon.errors import AttackError, CanonError
from canon.verify import LayoutKey, register
from canon_benchmarks.grid import Record
from canon_benchmarks.measures.changed import BY_REFERENCE, BY_ROBUST_KEY, RELATED, WAYS
from canon_benchmarks.model_grid import GridCase, choose, run_grid
from canon_benchmarks.subjects import MODELS, VARIANTS, subject

STEPS: Final = {
    "nothing": None,
    "20% noise": "noise:relative=0.2",
    "2% of the spread": "noise:absolute=0.02",
    "8 bits": "round=8",
    "30% pruned": "prune=0.3",
}
"""What is done after the attack, by the name that tables use."""

HIDDEN: Final = ("dead_range", "dead_data", "odd_group", "odd_replace", "entangled", "tiny_column", "noisy_clique")
"""Attacks whose dummies cannot be shown redundant."""

GRID: Final = (*VARIANTS, *HIDDEN)
WANTED: Final = {"reference": BY_REFERENCE, "robust": BY_ROBUST_KEY}
"""Least coverage, by what the owner brings; a plain key has no target."""

NAMES: Final = {"reference": "the owner's model", "key": "the layout key", "robust": "the robust layout key"}
RATIOS: Final = (0.2, 0.5)
OUT: Final = Path("docs/results/containment_grid.json")


def measure(case: GridCase, device: str = "cpu") -> Record:
    """Attack, change in every way, and look for the owner's network."""
    torch.set_num_threads(1)
    exact_arithmetic()
    example = zoo.example_input(case.model).to(device)
    clean = subject(case.model, device=device)
    try:  # kernels stay as they are: the zeros of expanded ones would be all that pruning finds
        attacked = attack(clean, example, case.variant, ratio=case.ratio, seed=case.seed, split_shares="random").model
    except AttackError as error:
        why = (error.hint or "").removeprefix("Name other operations. ")
        return {"left_out": error.message + (f": {why}" if why else "")}
    anchors = _anchors(case.model, device)
    record: Record = {"clean": count(clean), "attacked": count(attacked)}
    steps: Record = {}
    for name, text in STEPS.items():
        suspect = attacked
        if text is not None:
            suspect = parse(text).apply(attacked, torch.Generator().manual_seed(case.seed))
        steps[name] = {}
        for way, anchor in anchors.items():
            try:
                found = locate(suspect, anchor, example)
                steps[name][way] = [round(found.coverage, 4), found.answer]
            except CanonError as error:
                steps[name][way] = [0.0, f"error: {error}"]
    return record | {"steps": steps, "good": all(_reached(step, way) for step in steps.values() for way in WANTED)}


def _reached(step: Record, way: str) -> bool:
    coverage, answer = step[way]
    return coverage >= WANTED[way] and answer in RELATED


@functools.lru_cache(maxsize=2)
def _anchors(name: str, device: str) -> dict[str, nn.Module | LayoutKey]:
    clean, example = subject(name, device=device), zoo.example_input(name).to(device)
    plain, robust = register(clean, example), register(clean, example, robust=True)
    return dict(zip(WAYS, (clean, plain, robust), strict=True))


def tables(records: Sequence[Record]) -> list[str]:
    """For each of what the owner brings: model by step, the least coverage over all attacks, and where it misses."""
    lines = []
    for way in WAYS:
        target = f", wanted at least {WANTED[way]:g}" if way in WANTED else ", no target"
        lines += [f"## By {NAMES[way]}{target}", ""]
        for title, kinds in (("attacks of the paper", VARIANTS), ("attacks that leave nothing redundant", HIDDEN)):
            chosen = [r for r in records if r["variant"] in kinds and "steps" in r]
            if chosen:
                lines += [f"| {title} | ρ | cases | " + " | ".join(STEPS) + " |", "|---|---|---|" + "---|" * len(STEPS)]
                lines += [*_rows(chosen, way), ""]
    return lines


def _rows(records: Sequence[Record], way: str) -> list[str]:
    rows = []
    for name in (model for model in MODELS if any(r["model"] == model for r in records)):
        for ratio in sorted({r["ratio"] for r in records if r["model"] == name}):
            mine = [r for r in records if r["model"] == name and r["ratio"] == ratio]
            cells = [_cell([r["steps"][step][way] for r in mine], way) for step in STEPS]
            rows.append(f"| {name} | {ratio:g} | {len(mine)} | " + " | ".join(cells) + " |")
    return rows


def _cell(found: Sequence[tuple[float, str]], way: str) -> str:
    """The least coverage; in bold, with the number of cases, where some miss the target."""
    least = min(coverage for coverage, _ in found)
    wanted = WANTED.get(way, 0.0)
    missed = sum(coverage < wanted or (way in WANTED and answer not in RELATED) for coverage, answer in found)
    lost = sum(answer not in RELATED for _, answer in found)
    if missed:
        return f"**{least:.3f}** ({missed} miss)"
    return f"{least:.3f}" + (f" ({lost} not found)" if lost else "")


def summary(records: Sequence[Record]) -> str:
    """The grid in one paragraph."""
    run = [record for record in records if "steps" in record]
    cells = [step for record in run for step in record["steps"].values()]
    parts = [f"{len(run)} attacked models, {len(cells)} suspects."]
    for way, wanted in WANTED.items():
        reached = sum(_reached(cell, way) for cell in cells)
        parts.append(f"By {NAMES[way]} {reached} of {len(cells)} reach {wanted:g} and are found.")
    found = sum(cell["key"][1] in RELATED for cell in cells)
    enough = sum(cell["key"][0] >= BY_ROBUST_KEY for cell in cells)
    parts.append(f"By {NAMES['key']} {found} are found, {enough} of them with a coverage of {BY_ROBUST_KEY:g} or more.")
    left = len(records) - len(run)
    return " ".join(parts) + (f" {left} attacks were refused: no layer allows them." if left else "")


def page(records: Sequence[Record]) -> str:
    """The page that is kept with the documentation."""
    missed = [
        f"- {r['model']}, {r['variant']}, ρ = {r['ratio']:g}, {step}, by {NAMES[way]}: "
        f"{found[way][0]:g}, {found[way][1]}"
        for r in records
        if "steps" in r
        for step, found in r["steps"].items()
        for way in WANTED
        if not _reached(found, way)
    ]
    refused = [
        f"- {r['model']}, {r['variant']}, ρ = {r['ratio']:g}: {r['left_out']}" for r in records if "left_out" in r
    ]
    return "\n".join([
        "# Containment over the full grid", "",
        "Made by `python -m canon_benchmarks containment_grid` from `containment_grid.json`. Models have "
        "random weights; "
        "attacks come with permutation, scaling and random split shares; kernels are not expanded, as their zeros "
        "would be all that pruning finds. Cells: the least share of the owner's channels that was found, over all "
        "attacks of the row. "
        "Noise is relative to each weight, or to the spread of its tensor; 8 bits are symmetric, one step per tensor. "
        "Cases with a record are not run again: rows were measured one after the other, by several states of the code.",
        "", summary(records), "", *tables(records), "## What misses its target", "", *(missed or ["Nothing."]), "",
        "## What was refused", "", *(refused or ["Nothing."]), "",
        "## What was not run", "", *(_left(records) or ["Nothing."]), "",
    ])  # fmt: skip


def _left(records: Sequence[Record]) -> list[str]:
    """Cases without a record, by model and share."""
    known = {(r["model"], r["ratio"], r["variant"]) for r in records}
    lines = []
    for name in MODELS:
        for ratio in RATIOS:
            left = [variant for variant in GRID if (name, ratio, variant) not in known]
            if left:
                which = "no attack was run" if len(left) == len(GRID) else ", ".join(left)
                lines.append(f"- {name}, ρ = {ratio:g}: {which}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid; the status is 1 when a case misses its target, 3 when some are still to do."""
    chosen = choose(arguments, __doc__, OUT, ratios=RATIOS, seeds=(0,), variants=GRID, known=GRID)
    return run_grid(chosen, measure, page, summary)
