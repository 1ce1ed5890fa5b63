"""What a defence makes of an attacked model: ours, and those of others."""

from __future__ import annotations

from torch import nn

from canon import watermarks
from canon.api import recover
from canon.bench.lab import Owner, Setup, dataset_for, owner
from canon.bench.measures.attacked import attacked_model, certified, count, note_certificate, widths_differ
from canon.bench.measures.recovery import note_function
from canon.bench.measures.sheet import Sheet
from canon_benchmarks.baselines import BASELINES
from canon_benchmarks.cases import Baseline

SAMPLES = 512
"""Training images that a defence may see if it needs any."""


def measure_baseline(case: Baseline, setup: Setup, sheet: Sheet) -> None:
    """Let a defence have the suspect and what it asks for, and see whether function and mark are back."""
    mine = owner(setup, case.training)
    suspect = attacked_model(case, mine, sheet)
    similarity = watermarks.get(case.scheme).similarity
    sheet.note(clean_similarity=similarity(mine.model, mine.key), attacked_similarity=similarity(suspect, mine.key))
    sheet.begin()
    model, note = _defend(case, setup, mine, suspect)
    sheet.lap("recover")
    sheet.note(applies=model is not None, remark=note, widths_given=False)
    if model is None:
        return
    sheet.note(
        parameters_recovered=count(model),
        recovered_similarity=similarity(model, mine.key),
        widths=widths_differ(model, mine.layout, mine.example) or "clean",
    )
    note_function(sheet, "recovered", mine, mine.answers(model))
    sheet.begin()
    # Canonical forms would be of our making, not of the defence's.
    found = certified(model, mine.model, mine.layout, mine.example, mine.key.layers, sheet, canonical=False)
    note_certificate(sheet, "tier1", found)
    aligned = model if found.alignment is None or not found.alignment.established else found.alignment.model
    sheet.note(aligned_similarity=similarity(aligned, mine.key))


def _defend(case: Baseline, setup: Setup, mine: Owner, suspect: nn.Module) -> tuple[nn.Module | None, str]:
    if case.method.startswith("canon-"):
        result = recover(suspect, mine.example, case.method.removeprefix("canon-"))
        return result.model, f"removed {result.report.removed}, merged {result.report.merged} channels"
    data = dataset_for(setup, case)
    samples = data.images_at(data.train_images[:SAMPLES], setup.device)
    found = BASELINES[case.method].recover(suspect, mine.example, samples=samples, original=mine.model, seed=0)
    return found.model, found.note
