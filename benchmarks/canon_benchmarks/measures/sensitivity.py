"""The probe method with one parameter changed: what it still gives back."""

from __future__ import annotations

from canon import watermarks
from canon.bench.lab import Setup, owner
from canon.bench.measures.attacked import attacked_model
from canon.bench.measures.sheet import Sheet
from canon.errors import RecoveryError
from canon.recovery import recover
from canon_benchmarks.cases import Sensitivity
from canon_benchmarks.measures.methods import held, restored


def measure_sensitivity(case: Sensitivity, setup: Setup, sheet: Sheet) -> None:
    """Attack once, undo it once, and hold the result against the owner's model."""
    mine = owner(setup, case.training)
    suspect = attacked_model(case, mine, sheet)
    similarity = watermarks.get(case.scheme).similarity
    clean, attacked = similarity(mine.model, mine.key), similarity(suspect, mine.key)
    sheet.note(clean_similarity=clean, attacked_similarity=attacked, widths_given=False)
    sheet.begin()
    try:
        model = recover(suspect, mine.example, "probe", options=case.probe_options()).model
    except RecoveryError as error:
        sheet.note(error=error.message)
    else:
        sheet.lap("recover")
        sheet.note(**{f"probe_{metric}": value for metric, value in held(mine, model, clean, attacked).items()})
    sheet.note(restored=restored(sheet.metrics, "probe"))
