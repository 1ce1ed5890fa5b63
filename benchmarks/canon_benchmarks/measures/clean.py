"""False positives: recovery of a model that nobody attacked."""

from __future__ import annotations

from collections import Counter

from torch import nn

from canon import watermarks
from canon.api import recover
from canon.bench.lab import Setup, owner
from canon.bench.measures.attacked import certified, count, note_certificate
from canon.bench.measures.recovery import note_function
from canon.bench.measures.sheet import Sheet
from canon.recovery import RecoveryReport
from canon.watermarks.layers import layer_weight, weighted_layers
from canon_benchmarks.cases import Clean


def measure_clean(case: Clean, setup: Setup, sheet: Sheet) -> None:
    """The paper's P-FPR, L-FP, Δsim and Δacc. Recovery is told nothing of the clean widths.

    Where it removes something, what that was, and whether it stays when the widths are told.
    """
    mine = owner(setup, case.training)
    sheet.note(model=mine.trained.figures["model"][:16], clean_accuracy=mine.accuracy(mine.logits))
    sheet.begin()
    result = recover(mine.model, mine.example, case.method)
    sheet.lap("recover")
    before, after = _shapes(mine.model), _shapes(result.model)
    parameters = count(mine.model)
    similarity = watermarks.get(case.scheme).similarity
    clean, recovered = similarity(mine.model, mine.key), similarity(result.model, mine.key)
    sheet.note(
        parameters=parameters,
        parameter_false_positives=(parameters - count(result.model)) / parameters,
        layers=len(before),
        layers_changed=sum(before[name] != after[name] for name in before),
        clean_similarity=clean,
        recovered_similarity=recovered,
        delta_similarity=round(abs(recovered - clean), 6),
        untouched=_same_tensors(mine.model, result.model),
    )
    if result.report.changed:
        told = recover(mine.model, mine.example, case.method, widths=mine.model)
        sheet.note(removed=_removed(result.report), untouched_if_told=_same_tensors(mine.model, told.model))
    note_function(sheet, "recovered", mine, mine.answers(result.model))
    sheet.begin()
    found = certified(result.model, mine.model, mine.layout, mine.example, mine.key.layers, sheet)
    note_certificate(sheet, "tier1", found)
    seen = sheet.metrics
    sheet.note(
        good=seen["parameter_false_positives"] == 0
        and seen["layers_changed"] == 0
        and seen["delta_similarity"] == 0
        and seen["recovered_delta_accuracy"] == 0
        and seen["tier1_passed"] is True
    )


def _removed(report: RecoveryReport) -> str:
    """How many channels of which kind are gone."""
    kinds: Counter[str] = Counter()
    for space in report.spaces:
        kinds.update(space.counts)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def _shapes(model: nn.Module) -> dict[str, int]:
    """Output channels of every Conv and Linear layer."""
    return {name: len(layer_weight(model, name)) for name in weighted_layers(model)}


def _same_tensors(first: nn.Module, second: nn.Module) -> bool:
    """Whether all tensors are the same, bit for bit."""
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(
        ours[name].shape == theirs[name].shape and bool((ours[name] == theirs[name]).all()) for name in ours
    )
