"""`python -m canon_benchmarks relatives`: strangers, innocents and thieves, all trained, held against an owner's model.

Strangers are trained on the same data from other starts; one kind starts from the owner's own first weights. Innocents
are fine-tuned from the owner's public ancestor, thieves' copies from the owner's model. Everyone is judged by the
owner's model and located by its robust layout key, innocents and thieves with and without the ancestor. Records are
kept in one JSON file and a page is made from it; cases with a record are not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import nn

from canon._files import write_text
from canon.api import judge
from canon.attacks import attack
from canon.attacks.after import parse
from canon.bench.measures import exact_arithmetic
from canon.containment import locate
from canon.verify import register
from canon_benchmarks.grid import GridFile, Record, run_cases
from canon_benchmarks.relatives_page import page
from canon_benchmarks.schooling import School

OUT: Final = Path("docs/results/relatives.json")
KEYS: Final = ("dataset", "model", "kind", "seed")
STRANGERS: Final = 20
APART: Final = 3
"""Models that start from the owner's first weights."""

APART_KIND: Final = "same first weights"
FAMILY: Final = 3
"""Innocents and thieves of each kind."""

TUNED: Final = {
    "innocent: other classes": ("ancestor", "other", 5, 0.02),
    "innocent: half the classes": ("ancestor", "half", 5, 0.02),
    "innocent: same data": ("ancestor", "owner", 5, 0.02),
    "thief: one mild epoch": ("owner", "owner", 1, 0.002),
    "thief: five harsh epochs": ("owner", "owner", 5, 0.02),
}
"""By kind: what it starts from, on which data, how many epochs, at which rate."""

COPIES: Final = {
    "copy: disguised": (),
    "copy: disguised, 20% noise": ("noise:relative=0.2",),
    "copy: disguised, 2% of the spread": ("noise:absolute=0.02",),
    "copy: disguised, 8 bits": ("round=8",),
    "copy: disguised, 30% pruned": ("prune=0.3",),
    "copy: disguised, two epochs": ("finetune",),
    "copy: two harsh epochs, disguised": ("before",),
}
"""By kind: what is done to the owner's model besides the disguise."""


@dataclass(frozen=True)
class Relative:
    """One suspect."""

    dataset: str
    model: str
    kind: str
    seed: int


def cases(dataset: str, models: Sequence[str]) -> Iterator[Relative]:
    """Whoever has nothing of the owner's but the data, or the data and the first weights."""
    for model in models:
        for seed in range(STRANGERS):
            yield Relative(dataset, model, "stranger", seed)
        for seed in range(APART):
            yield Relative(dataset, model, APART_KIND, seed)


def family(dataset: str, model: str) -> Iterator[Relative]:
    """Whoever descends from the owner's model or from its ancestor."""
    for kind in COPIES:
        yield Relative(dataset, model, kind, 0)
    for seed in range(FAMILY):
        for kind in TUNED:
            yield Relative(dataset, model, kind, seed)
    for kind in ("stranger", APART_KIND):
        for seed in range(2):
            yield Relative(dataset, model, kind, seed)


def measure(case: Relative, school: School) -> Record:
    """Train the suspect, and hold it against the owner's model."""
    torch.set_num_threads(1)
    exact_arithmetic()
    owner = school.owner(case.model)
    suspect = _suspect(case, school)
    record: Record = {"accuracy": school.accuracy(suspect), "owner_accuracy": school.accuracy(owner)}
    owner, suspect = owner.cpu().eval(), suspect.cpu().eval()
    example = school.example()
    record["alone"] = _judged(suspect, owner, example, ())
    found = locate(suspect, register(owner, example, robust=True), example)
    record["robust"] = {"network": found.answer, "coverage": round(found.coverage, 4), "deep": round(found.deep, 4)}
    if case.kind in TUNED or case.kind == APART_KIND:
        ancestor = school.ancestor(case.model) if case.kind in TUNED else school.first_weights(case.model, 0)
        record["with_ancestor"] = _judged(suspect, owner, example, (ancestor.cpu().eval(),))
    return record


def _judged(suspect: nn.Module, owner: nn.Module, example: torch.Tensor, ancestors: Sequence[nn.Module]) -> Record:
    judged = judge(suspect, example, reference=owner, ancestors=ancestors)
    record: Record = {
        "verdict": judged.verdict.kind,
        "network": judged.answers.network.answer,
        "function": judged.answers.function.answer,
        "coverage": round(judged.answers.network.coverage, 4),
        "names_ancestor": "ancestor" in judged.answers.network.reason + " ".join(judged.answers.network.notes),
    }
    if judged.location is not None:
        record["deep"] = round(judged.location.deep, 4)
        record["residual"] = None if judged.location.median is None else float(f"{judged.location.median:.3g}")
        record["updates"] = [round(update.cosine, 4) for update in judged.location.ancestors]
    return record


def _suspect(case: Relative, school: School) -> nn.Module:
    if case.kind == "stranger":
        return school.trained(case.model, start=1000 + case.seed, order=1000 + case.seed)
    if case.kind == APART_KIND:
        return school.trained(case.model, start=0, order=1000 + case.seed)
    if case.kind in TUNED:
        origin, data, epochs, rate = TUNED[case.kind]
        start = school.ancestor(case.model) if origin == "ancestor" else school.owner(case.model)
        return school.tuned(start, data, epochs, rate, seed=100 + case.seed)
    steps = COPIES[case.kind]
    model = school.owner(case.model)
    if steps == ("before",):
        model = school.tuned(model, "owner", 2, 0.02, seed=7)
    hidden = attack(model.cpu().eval(), school.example(), "mix-opseq", ratio=0.2, seed=case.seed).model
    if steps == ("finetune",):
        return school.tuned(hidden, "owner", 2, 0.01, seed=7)
    for step in steps:
        if step != "before":
            hidden = parse(step).apply(hidden, torch.Generator().manual_seed(case.seed))
    return hidden


class _Measure:
    """A measurement that other processes can take."""

    def __init__(self, school: School) -> None:
        self.school = school

    def __call__(self, case: Relative) -> Record:
        return measure(case, self.school)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and page; the status is 1 when somebody is wrongly believed, 3 when some are left."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks relatives", description=main.__doc__)
    parser.add_argument("--dataset", default="digits", help="digits, mnist or cifar100; the last adds a whole family")
    parser.add_argument("--models", nargs="+", default=["resnet18", "plain", "separable", "linear"], metavar="NAME")
    parser.add_argument("--data", type=Path, help="folder of the dataset")
    parser.add_argument("--cache", type=Path, default=Path("runs/bench/relatives"), help="folder of trained models")
    parser.add_argument("--device", default="cpu", help="where to train")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run beside each other")
    parser.add_argument("--minutes", type=float, help="begin no case after this time; run again to go on")
    parser.add_argument("--page", action="store_true", help="make the page, measure nothing")
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file to write and to continue")
    chosen = parser.parse_args(arguments)
    store, left = GridFile.open(chosen.out, KEYS), 0
    if not chosen.page:
        school = School(chosen.dataset, chosen.data, chosen.device, chosen.cache)
        grown = chosen.dataset == "cifar100"
        todo = [c for m in chosen.models for c in family(chosen.dataset, m)] if grown else []
        todo = todo or list(cases(chosen.dataset, chosen.models))
        for model in chosen.models:  # once, before several processes want it
            school.owner(model)
        left = run_cases(todo, _Measure(school), store, jobs=chosen.jobs, minutes=chosen.minutes)
    records = list(store.records.values())
    text, bad = page(records)
    write_text(chosen.out.with_suffix(".md"), text, force=True)
    return 1 if bad else 3 if left else 0
