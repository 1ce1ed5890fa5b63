"""`python -m canon_benchmarks rewritings`: the models of the paper, hidden, and then written as other programs.

A copy of the reference is attacked (mix-opseq, ρ = 0.2, with permutation and scaling), and five rewritings that keep
the function are chosen at random and done one after the other (`canon_benchmarks.thief`). The suspect is judged by the
reference and by its layout key, every other time with inputs of another size than the key was made with. A case is
good when the network is equal or contained both times.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from canon import zoo
from canon._files import write_text
from canon.attacks import attack
from canon.verify import LayoutKey, register
from canon_benchmarks.both_ways import judged_both_ways
from canon_benchmarks.grid import GridFile, Record, run_cases
from canon_benchmarks.subjects import subject
from canon_benchmarks.thief import REWRITINGS, rewritten

KEYS: Final = ("model", "seed")
GOOD: Final = ("equal", "contained")
RATIO: Final = 0.2
COUNT: Final = 5
LARGER: Final = 32
"""Pixels that the other size has more."""

OUT: Final = Path("docs/results/rewritings.json")


@dataclass(frozen=True)
class RewritingCase:
    """A model and what chance makes of it."""

    model: str
    seed: int


@lru_cache(maxsize=1)
def _owned(name: str) -> tuple[nn.Module, LayoutKey]:
    reference = subject(name)
    return reference, register(reference, zoo.example_input(name), seed=0)


def _input(name: str, seed: int) -> Tensor:
    example = zoo.example_input(name)
    if seed % 2 == 0:
        return example
    side = example.shape[-1] + LARGER
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(seed))


def measure(case: RewritingCase) -> Record:
    """Hide, rewrite and judge one model."""
    torch.set_num_threads(1)
    reference, key = _owned(case.model)
    hidden = attack(reference, zoo.example_input(case.model), "mix-opseq", ratio=RATIO, seed=case.seed).model
    names = random.Random(case.seed).sample(list(REWRITINGS), COUNT)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        suspect = rewritten(hidden, names, seed=case.seed)
    example = _input(case.model, case.seed)
    record: Record = {"rewritings": suspect.meta["done"], "size": example.shape[-1]}
    return {**record, **judged_both_ways(suspect, example, reference, key, GOOD)}


def page(records: Sequence[Record]) -> str:
    """The page that is kept with the documentation."""
    good = sum(record["good"] for record in records)
    lines = [
        "# Sequences of five rewritings\n",
        "Made by `python -m canon_benchmarks rewritings` from `rewritings.json`. The suspect is the reference after "
        "mix-opseq at ρ = 0.2 with permutation and scaling, written as another program by five rewritings of "
        "`canon_benchmarks.thief`, chosen at random; those that find no place are left out.\n",
        f"{good} of {len(records)} are *equal* or *contained* by the reference and by the layout key.\n",
        "| model | seed | input | rewritings | by reference | by key |",
        "|---|---|---|---|---|---|",
    ]
    for record in sorted(records, key=lambda r: (zoo.PAPER_MODELS.index(r["model"]), r["seed"])):
        done = ", ".join(name.replace("_", " ") for name in record["rewritings"])
        answers = " | ".join(record[way]["network"] for way in ("reference", "key"))
        lines.append(f"| {record['model']} | {record['seed']} | {record['size']} | {done} | {answers} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases without a record; the status is 1 when one is not good."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks rewritings", description=__doc__)
    parser.add_argument("--model", nargs="+", default=list(zoo.PAPER_MODELS), choices=zoo.PAPER_MODELS)
    parser.add_argument("--seeds", type=int, default=6, help="sequences by model")
    parser.add_argument("--minutes", type=float, help="begin no case after this time")
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file to write and to continue")
    chosen = parser.parse_args(arguments)
    cases = [RewritingCase(model, seed) for model in chosen.model for seed in range(chosen.seeds)]
    store = GridFile.open(chosen.out, KEYS)
    left = run_cases(cases, measure, store, minutes=chosen.minutes)
    ordered = list(store.records.values())
    write_text(chosen.out.with_suffix(".md"), page(ordered), force=True)
    return 1 if left or not all(record["good"] for record in ordered) else 0
