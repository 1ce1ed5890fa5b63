"""Kinds of hidden redundancy, each injected alone: are the clean shapes back, and how far do logits drift?"""

from __future__ import annotations

import copy
from collections import Counter

import torch

from canon.attacks import attack
from canon.bench.lab import Setup
from canon.bench.measures.attacked import refusals
from canon.bench.measures.sheet import Sheet
from canon.recovery import recover
from canon_benchmarks.cases import Point
from canon_benchmarks.measures.hidden import clean_model, example_of
from canon_benchmarks.subjects import gap, inputs, logits, shapes


def measure_point(case: Point, setup: Setup, sheet: Sheet) -> None:
    """Inject, recover, and look at shapes and logits."""
    clean, example = clean_model(case.model, setup.device), example_of(case, setup)
    with refusals():
        attacked = attack(clean, example, [case.attack], ratio=case.ratio, seed=case.seed).model
    given = inputs(case.model, case.seed)[:1]
    expected = logits(clean, given, torch.float64)
    sheet.note(good=False, hidden=gap(logits(attacked, given, torch.float64), expected))
    sheet.begin()
    lean = copy.deepcopy(recover(attacked, example).lean())
    sheet.lap("recover")
    same = Counter(shapes(lean).values()) == Counter(shapes(clean).values())
    sheet.note(good=same, drift=gap(logits(lean, given, torch.float64), expected))
