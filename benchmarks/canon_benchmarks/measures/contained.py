"""The owner's network found in attacked and then changed models, by the model and by its layout keys."""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
from torch import nn

from canon.attacks import attack
from canon.attacks.after import parse
from canon.bench.lab import Setup
from canon.bench.measures.attacked import Refused, count
from canon.bench.measures.sheet import Sheet
from canon.containment import locate
from canon.errors import AttackError, CanonError
from canon.verify import LayoutKey, register
from canon.zoo import example_input
from canon_benchmarks.cases import Contained
from canon_benchmarks.measures.changed import BY_REFERENCE, BY_ROBUST_KEY, RELATED, WAYS
from canon_benchmarks.measures.hidden import clean_model, example_of

STEPS: Final = {
    "nothing": None,
    "20% noise": "noise:relative=0.2",
    "2% of the spread": "noise:absolute=0.02",
    "8 bits": "round=8",
    "30% pruned": "prune=0.3",
}
"""What is done after the attack, by the name that tables use."""

WANTED: Final = {"reference": BY_REFERENCE, "robust": BY_ROBUST_KEY}
"""Least coverage, by what the owner brings; a plain key has no target."""


def measure_contained(case: Contained, setup: Setup, sheet: Sheet) -> None:
    """Attack, change in every way, and look for the owner's network."""
    clean, example = clean_model(case.model, setup.device), example_of(case, setup)
    try:  # kernels stay as they are: the zeros of expanded ones would be all that pruning finds
        attacked = attack(clean, example, case.attack, ratio=case.ratio, seed=case.seed, split_shares="random").model
    except AttackError as error:
        why = (error.hint or "").removeprefix("Name other operations. ")
        raise Refused(error.message + (f": {why}" if why else "")) from error
    sheet.note(clean=count(clean), attacked=count(attacked))
    steps: dict[str, Any] = {}
    for name, text in STEPS.items():
        suspect = attacked
        if text is not None:
            suspect = parse(text).apply(attacked, torch.Generator().manual_seed(case.seed))
        steps[name] = {}
        for way, anchor in _anchors(case.model, setup.device).items():
            try:
                found = locate(suspect, anchor, example)
                steps[name][way] = [round(found.coverage, 4), found.answer]
            except CanonError as error:
                steps[name][way] = [0.0, f"error: {error}"]
    sheet.note(steps=steps, good=all(reached(step[way], way) for step in steps.values() for way in WANTED))


def reached(found: tuple[float, str], way: str) -> bool:
    """Whether coverage and answer are what is wanted with this of what the owner brings."""
    return found[0] >= WANTED.get(way, 0.0) and found[1] in RELATED


@functools.lru_cache(maxsize=2)
def _anchors(name: str, device: str) -> dict[str, nn.Module | LayoutKey]:
    clean, example = clean_model(name, device), example_input(name).to(device)
    plain, robust = register(clean, example), register(clean, example, robust=True)
    return dict(zip(WAYS, (clean, plain, robust), strict=True))
