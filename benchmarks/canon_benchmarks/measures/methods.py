"""One attack and every method: what each makes of the same suspect, from the suspect alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import Tensor, nn

from canon import watermarks
from canon.bench.lab import Owner, Setup, owner
from canon.bench.measures.attacked import attacked_model, certified, count, widths_differ
from canon.bench.measures.sheet import Sheet, short
from canon.errors import RecoveryError
from canon.recovery import recover
from canon.verify.mark import Tier2
from canon_benchmarks.baselines import BASELINES
from canon_benchmarks.cases import Methods

Undo = Callable[[nn.Module, Tensor], nn.Module | None]


METHODS: Final[dict[str, Undo]] = {
    "single": lambda suspect, example: BASELINES["single-pass"].recover(suspect, example).model,
    "probe": lambda suspect, example: recover(suspect, example, "probe").model,
    "exact": lambda suspect, example: recover(suspect, example, "exact").model,
}
"""By the name that metrics begin with."""


def measure_methods(case: Methods, setup: Setup, sheet: Sheet) -> None:
    """Attack once; let every method undo it, and hold what it made against the owner's model."""
    mine = owner(setup, case.training)
    suspect = attacked_model(case, mine, sheet)
    similarity = watermarks.get(case.scheme).similarity
    clean, attacked = similarity(mine.model, mine.key), similarity(suspect, mine.key)
    logits = mine.answers(suspect)
    sheet.note(
        clean_similarity=clean,
        attacked_similarity=attacked,
        clean_accuracy=mine.accuracy(mine.logits),
        attacked_delta_accuracy=_gap(mine, logits),
        layers=len(mine.key.layers),
        widths_given=False,
    )
    for name, undo in METHODS.items():
        sheet.begin()
        try:
            model = undo(suspect, mine.example)
        except RecoveryError as error:
            model = None
            sheet.note(**{f"{name}_error": error.message})
        sheet.lap(f"recover_{name}")
        if model is not None:
            sheet.note(**{f"{name}_{metric}": value for metric, value in held(mine, model, clean, attacked).items()})
    sheet.note(good=restored(sheet.metrics, "exact"))


def held(mine: Owner, model: nn.Module, clean: float, attacked: float) -> dict[str, Any]:
    """What a method made, in figures."""
    similarity = watermarks.get(mine.key.scheme).similarity
    found = certified(model, mine.model, mine.layout, mine.example, mine.key.layers, canonical=False)
    certificate, alignment = found.certificate, found.alignment
    aligned = model if alignment is None or not alignment.established else alignment.model
    recovered = similarity(model, mine.key)
    return {
        "parameters": count(model),
        "shapes": widths_differ(model, mine.layout, mine.example) is None,
        "delta_accuracy": _gap(mine, mine.answers(model)),
        "recovered_similarity": recovered,
        "tier2": Tier2(clean, attacked, recovered).passed,
        "aligned_similarity": similarity(aligned, mine.key),
        "wrong_key": similarity(aligned, mine.wrong_key),
        "tier1": certificate.passed,
        "tier1_layers": sum(layer.passed for layer in certificate.layers),
        "max_rel_err": short(certificate.max_rel_err),
    }


def _gap(mine: Owner, logits: Tensor) -> float:
    return round(abs(mine.accuracy(mine.logits) - mine.accuracy(logits)), 6)


def restored(found: Mapping[str, Any], name: str) -> bool:
    """Whether shapes, certificate, mark and accuracy are those of the clean model."""
    return (
        found.get(f"{name}_shapes") is True
        and found[f"{name}_tier1"] is True
        and found[f"{name}_aligned_similarity"] == found["clean_similarity"]
        and found[f"{name}_delta_accuracy"] == 0
    )
