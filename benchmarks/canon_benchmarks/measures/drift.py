"""How far residuals spread in changed copies, and how little of a stranger is matched."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from canon import zoo
from canon.api import Judgement, judge
from canon.attacks import attack
from canon.attacks.after import parse
from canon.bench.lab import Setup, dataset_for, owner
from canon.bench.measures.recovery import STRONG
from canon.bench.measures.sheet import Sheet, short
from canon.watermarks import Dataset
from canon_benchmarks.cases import UNCHANGED, Drift

BATCH = 64
STRANGERS = 1000
"""Added to the number of a stranger for the seed of its first weights."""


def measure_drift(case: Drift, setup: Setup, sheet: Sheet) -> None:
    """Change and disguise a copy, or train a stranger, and judge it by way of the reference and of the layout key."""
    mine, data = owner(setup, case.training), dataset_for(setup, case)
    strange = case.change == "stranger"
    suspect = _stranger(case, setup, data) if strange else _changed(case, mine.model, data)
    sheet.note(accuracy=round(mine.accuracy(mine.answers(suspect)), 4))
    if not strange:
        suspect = attack(suspect, mine.example, "mix-opseq", ratio=0.2, seed=2).model
    believed = False
    for way, anchor in (("reference", {"reference": mine.model}), ("key", {"layout_key": mine.layout_key})):
        found = judge(suspect, mine.example, **anchor, watermark_key=mine.key)
        believed = believed or found.verdict.kind in STRONG
        _note(sheet, way, found)
    sheet.note(good=not (strange and believed))


def _changed(case: Drift, model: nn.Module, data: Dataset) -> nn.Module:
    if case.change == UNCHANGED:
        return model
    if case.change.startswith("rate "):
        return tuned(model, data, float(case.change.removeprefix("rate ")), case.steps, seed=1)
    return parse(case.change).apply(model, torch.Generator().manual_seed(0))


def _stranger(case: Drift, setup: Setup, data: Dataset) -> nn.Module:
    model = zoo.model(case.model, classes=data.classes, seed=STRANGERS + case.other).to(setup.device)
    return tuned(model, data, 0.02, case.steps, seed=3)


def tuned(model: nn.Module, data: Dataset, rate: float, steps: int, seed: int) -> nn.Module:
    """Train a copy on, with stochastic gradient descent."""
    generator = torch.Generator().manual_seed(seed)
    result = copy.deepcopy(model).train()
    device = next(result.parameters()).device
    optimizer = torch.optim.SGD(result.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    for _ in range(steps):
        chosen = torch.randint(len(data.train_images), (BATCH,), generator=generator)
        optimizer.zero_grad()
        images = data.images_at(data.train_images[chosen], device)
        F.cross_entropy(result(images), data.train_labels[chosen].to(device)).backward()
        optimizer.step()
    return result.eval()


def _note(sheet: Sheet, way: str, found: Judgement) -> None:
    alignment, certificate, mark = found.alignment, found.compared.certificate, found.mark
    sheet.note(**{f"{way}_verdict": found.verdict.kind, f"{way}_network": found.answers.network.answer})
    if alignment is not None:
        sheet.note(**{f"{way}_distinct": round(alignment.distinct, 4), f"{way}_worst": short(alignment.worst)})
    if mark is not None:
        figures = {"matched": mark.matched, "total": mark.total, "p_value": short(mark.p_value)}
        sheet.note(**{f"{way}_{name}": value for name, value in figures.items()})
    if certificate is not None and certificate.residuals:
        quantiles = certificate.quantiles((0.5, 0.95, 1.0))
        passing = [row.tolerance for row in certificate.sweep() if row.passed]
        figures = {"median": quantiles[0.5], "q95": quantiles[0.95], "max": quantiles[1.0]}
        sheet.note(**{f"{way}_{name}": short(value) for name, value in figures.items()})
        sheet.note(**{f"{way}_passes_at": passing[0] if passing else None})
