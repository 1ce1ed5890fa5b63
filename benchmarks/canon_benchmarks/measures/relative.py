"""Strangers, innocents, thieves and copies, held against the owner's model.

Strangers are trained on the same data from other starts; some start from the owner's own first weights. Innocents are
fine-tuned from the owner's public ancestor, thieves' copies from the owner's model. Everyone is judged by the owner's
model and located by its robust layout key, innocents and thieves with and without the ancestor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from canon.api import judge
from canon.attacks import attack
from canon.attacks.after import parse
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet, short
from canon.containment import locate
from canon.verify import register
from canon_benchmarks.cases import Relative
from canon_benchmarks.measures.changed import RELATED
from canon_benchmarks.schooling import APART, COPIES, TUNED, UNLIKE, School

CHANCE: Final = 0.01
"""Share of the channels beyond the first layers that may be found in a stranger."""


def measure_relative(case: Relative, setup: Setup, sheet: Sheet) -> None:
    """Train the suspect, and hold it against the owner's model."""
    school = School(case.dataset, setup.data, setup.device, setup.cache / "relatives")
    owner = school.owner(case.model)
    suspect = _suspect(case, school)
    sheet.note(accuracy=school.accuracy(suspect), owner_accuracy=school.accuracy(owner))
    owner, suspect = owner.cpu().eval(), suspect.cpu().eval()
    example = school.example()
    _judge(sheet, "alone", suspect, owner, example, ())
    found = locate(suspect, register(owner, example, robust=True), example)
    sheet.note(robust_network=found.answer, robust_coverage=round(found.coverage, 4), robust_deep=round(found.deep, 4))
    if case.who in TUNED or case.who == APART:
        ancestor = school.ancestor(case.model) if case.who in TUNED else school.first_weights(case.model, 0)
        _judge(sheet, "aware", suspect, owner, example, (ancestor.cpu().eval(),))
    sheet.note(good=not why_bad(case.who, sheet.metrics))


def _judge(
    sheet: Sheet, way: str, suspect: nn.Module, owner: nn.Module, example: torch.Tensor, ancestors: Sequence[nn.Module]
) -> None:
    judged = judge(suspect, example, reference=owner, ancestors=ancestors)
    network = judged.answers.network
    named = "ancestor" in network.reason + " ".join(network.notes)
    figures = {
        "verdict": judged.verdict.kind,
        "network": network.answer,
        "function": judged.answers.function.answer,
        "coverage": round(network.coverage, 4),
        "names_ancestor": named,
    }
    sheet.note(**{f"{way}_{name}": value for name, value in figures.items()})
    if (found := judged.location) is not None:
        residual = None if found.median is None else short(found.median)
        updates = [round(update.cosine, 4) for update in found.ancestors]
        sheet.note(**{f"{way}_deep": round(found.deep, 4), f"{way}_residual": residual, f"{way}_updates": updates})


def _suspect(case: Relative, school: School) -> nn.Module:
    if case.who == "stranger":
        return school.trained(case.model, start=1000 + case.seed, order=1000 + case.seed)
    if case.who == APART:
        return school.trained(case.model, start=0, order=1000 + case.seed)
    if case.who in TUNED:
        origin, data, epochs, rate = TUNED[case.who]
        start = school.ancestor(case.model) if origin == "ancestor" else school.owner(case.model)
        return school.tuned(start, data, epochs, rate, seed=100 + case.seed)
    steps = COPIES[case.who]
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


def why_bad(who: str, found: Mapping[str, Any]) -> str:
    """What is not as it should be; empty where all is well."""
    if who in UNLIKE:
        most = max(found.get("alone_deep", 0.0), found["robust_deep"])
        if any(found[f"{way}_network"] in RELATED for way in ("alone", "robust")):
            return "believed"
        return f"{most:.2%} found beyond the first layers" if most > CHANCE else ""
    if who.startswith("innocent"):
        if found["aware_network"] in RELATED:
            return f"{found['aware_network']} although the ancestor was given"
        silent = found["alone_network"] in RELATED and not found["alone_names_ancestor"]
        return "a common ancestor is not named as an explanation" if silent else ""
    if who == "thief: one mild epoch" and found["aware_network"] not in RELATED:
        return f"{found['aware_network']} with the ancestor given"
    if who in COPIES and (found["alone_coverage"] < 0.99 or found["robust_coverage"] < 0.95):
        return f"coverage {found['alone_coverage']:g} by the model, {found['robust_coverage']:g} by the robust key"
    return ""
