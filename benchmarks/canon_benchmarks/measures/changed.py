"""A disguised model, changed afterwards: what is found of the owner's network, and what is answered."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Final

import torch
from torch import nn

from canon import watermarks
from canon.api import Judgement, judge
from canon.attacks import attack
from canon.attacks.after import Finetune, Step, parse
from canon.bench.cases import Training
from canon.bench.lab import Owner, Setup, dataset_for, owner, through_a_file
from canon.bench.measures.attacked import count, refusals
from canon.bench.measures.sheet import Sheet, short
from canon.containment import locate
from canon.verify import LayoutKey, register
from canon.verify.mark import p_value
from canon_benchmarks.cases import UNCHANGED, Changed

KEPT: Final = 0.05
"""Accuracy that a thief gives up at most; beyond it the change has broken the model itself."""

BY_REFERENCE: Final = 0.99
"""Coverage that is wanted with the owner's model, as long as accuracy is kept."""

BY_ROBUST_KEY: Final = 0.95
"""Coverage that is wanted with a robust layout key."""

RELATED: Final = ("equal", "contained", "derived")
"""Answers that call the suspect the owner's."""

WAYS: Final = ("reference", "key", "robust")
"""What the owner brings: the model, the layout key, the robust layout key."""


def measure_changed(case: Changed, setup: Setup, sheet: Sheet) -> None:
    """Disguise, change, and judge with each of what an owner can bring."""
    mine = owner(setup, case.training)
    sheet.note(model=mine.trained.figures["model"][:16])
    suspect = _suspect(case, setup, mine, sheet)
    accuracy, clean = mine.accuracy(mine.answers(suspect)), mine.accuracy(mine.logits)
    sheet.note(accuracy=round(accuracy, 4), clean_accuracy=round(clean, 4), kept=accuracy >= clean - KEPT)
    sheet.begin()
    _note(sheet, "reference", judge(suspect, mine.example, reference=mine.model, watermark_key=mine.key))
    sheet.lap("judge")
    for way, key in (("robust", _robust_key(setup, case.training)), ("key", mine.layout_key)):
        sheet.begin()
        found = locate(suspect, key, mine.example)
        sheet.lap(f"locate_by_{way}")
        sheet.note(**{f"{way}_coverage": round(found.coverage, 4), f"{way}_network": found.answer})
        _note_bits(sheet, way, mine, found.model)
    sheet.note(good=_good(sheet))


def _suspect(case: Changed, setup: Setup, mine: Owner, sheet: Sheet) -> nn.Module:
    hidden = _disguised(replace(case, after=UNCHANGED), setup)
    sheet.note(parameters=count(hidden))
    if case.after == UNCHANGED:
        return hidden
    sheet.begin()
    with refusals():
        changed = _step(case, setup).apply(hidden, torch.Generator().manual_seed(case.attack_seed))
    sheet.lap("change")
    return changed


@functools.lru_cache(maxsize=2)
def _robust_key(setup: Setup, training: Training) -> LayoutKey:
    """The owner's robust layout key, as read back from its file."""
    mine = owner(setup, training)
    return through_a_file(register(mine.model, mine.example, robust=True))[0]


@functools.lru_cache(maxsize=1)
def _disguised(case: Changed, setup: Setup) -> nn.Module:
    mine = owner(setup, case.training)
    hidden = case.camouflage
    with refusals():
        return attack(
            mine.model, mine.example, case.attack, ratio=case.ratio, seed=case.attack_seed, permute=hidden, scale=hidden
        ).model


def _step(case: Changed, setup: Setup) -> Step:
    step = parse(case.after)
    if not isinstance(step, Finetune):
        return step
    data = dataset_for(setup, case)
    images = data.images_at(data.train_images, setup.device)
    return replace(step, data=(images, data.train_labels.to(setup.device)))


def _note(sheet: Sheet, way: str, found: Judgement) -> None:
    answers, place = found.answers, found.location
    worst = answers.network.residual
    figures = {
        "verdict": found.verdict.kind,
        "network": answers.network.answer,
        "function": answers.function.answer,
        "mark": answers.mark.answer,
        "priority": answers.priority.answer,
        "coverage": round(answers.network.coverage, 4),
        "residual": None if place is None or place.median is None else short(place.median),
        "worst": None if worst is None else short(worst),
        "agreement": None if place is None or place.agreement is None else short(place.agreement.difference),
    }
    if found.mark is not None:
        figures |= {"matched": found.mark.matched, "total": found.mark.total, "p_value": short(found.mark.p_value)}
    sheet.note(**{f"{way}_{name}": value for name, value in figures.items()})


def _note_bits(sheet: Sheet, way: str, mine: Owner, extracted: nn.Module | None) -> None:
    """What the mark's key reads from the network that was taken out of the suspect."""
    if extracted is None:
        return
    found = watermarks.get(mine.key.scheme).extract(extracted, mine.key, mine.example)
    chance = short(p_value(found.matched, found.total, found.alternatives))
    sheet.note(**{f"{way}_matched": found.matched, f"{way}_total": found.total, f"{way}_p_value": chance})


def _good(sheet: Sheet) -> bool:
    """As long as the model is worth stealing, it is found."""
    found = sheet.metrics
    return not found["kept"] or (
        float(found["reference_coverage"]) >= BY_REFERENCE
        and float(found["robust_coverage"]) >= BY_ROBUST_KEY
        and all(found[f"{way}_network"] in RELATED for way in ("reference", "robust"))
    )
