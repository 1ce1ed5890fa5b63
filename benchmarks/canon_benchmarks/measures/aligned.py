"""Aligned with the reference alone and with the layout key alone, is everything the owner's?"""

from __future__ import annotations

from typing import Final

from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet, short
from canon.recovery import recover
from canon.verify import align, compare
from canon_benchmarks.cases import Aligned
from canon_benchmarks.measures.hidden import clean_model, example_of, hidden_model, layout_key
from canon_benchmarks.subjects import gap, inputs, logits

LIMIT: Final = 1e-4
"""Largest residual of a good case."""


def measure_aligned(case: Aligned, setup: Setup, sheet: Sheet) -> None:
    """Recover, align in both ways and compare."""
    clean, example = clean_model(case.model, setup.device), example_of(case, setup)
    recovered = recover(hidden_model(case, setup, sheet), example).model
    key, share = layout_key(case.model, setup.device)
    sheet.note(key_share=share)
    given, good = inputs(case.model, case.seed), True
    for way, anchor in (("reference", clean), ("key", key)):
        sheet.begin()
        alignment = align(recovered, anchor, example)
        sheet.lap(way)
        found = compare(alignment, clean, example, LIMIT)
        parameters = max(found.parameters.values(), default=0.0)
        difference = gap(logits(alignment.model, given), logits(clean, given))
        sheet.note(
            **{
                f"{way}_max_rel_err": short(found.max_rel_err),
                f"{way}_match_frac": found.match_frac,
                f"{way}_parameters": short(parameters),
                f"{way}_distinct": round(alignment.distinct, 6),
                f"{way}_gap": short(difference),
            }
        )
        good = good and found.match_frac == 1 and max(found.max_rel_err, parameters, difference) <= LIMIT
    sheet.note(good=good)
