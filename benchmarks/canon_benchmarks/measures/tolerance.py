"""The certificate at several tolerances."""

from __future__ import annotations

from canon.api import recover
from canon.bench.lab import Setup, owner, stranger
from canon.bench.measures.attacked import attacked_model, certified, note_certificate
from canon.bench.measures.sheet import Sheet
from canon.verify import SWEEP
from canon_benchmarks.cases import Tolerance


def measure_tolerance(case: Tolerance, setup: Setup, sheet: Sheet) -> None:
    """Sweep the tolerance against the owner's model, where all must pass, and against a stranger's, where none may."""
    mine = owner(setup, case.training)
    suspect = attacked_model(case, mine, sheet)
    sheet.begin()
    recovered = recover(suspect, mine.example).model
    sheet.lap("recover")
    theirs, layout = stranger(setup, case.stranger)
    sheet.begin()
    found = certified(recovered, mine.model, mine.layout, mine.example, mine.key.layers, sheet)
    note_certificate(sheet, "tier1", found)
    ours = found.certificate.sweep()
    other = certified(recovered, theirs, layout, mine.example, mine.key.layers)
    note_certificate(sheet, "stranger", other)
    others = other.certificate.sweep()
    sheet.note(
        widths_given=False,
        tolerances=list(SWEEP),
        match_fracs=[round(row.match_frac, 6) for row in ours],
        stranger_match_fracs=[round(row.match_frac, 6) for row in others],
        good=all(row.passed for row in ours) and not any(row.passed for row in others),
    )
