"""Norms folded into the layers before them, as exporters do: is it still the owner's?"""

from __future__ import annotations

from canon.api import certify
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet, short
from canon.recovery import recover
from canon.rewrite import fold_norms
from canon.verify import align, compare
from canon.verify.forms import conform
from canon_benchmarks.cases import Folded
from canon_benchmarks.measures.aligned import LIMIT
from canon_benchmarks.measures.hidden import clean_model, example_of, hidden_model, layout_key
from canon_benchmarks.subjects import gap, inputs, logits


def measure_folded(case: Folded, setup: Setup, sheet: Sheet) -> None:
    """Fold, recover, certify, and align in both ways."""
    clean, example = clean_model(case.model, setup.device), example_of(case, setup)
    key, _ = layout_key(case.model, setup.device)
    folded = fold_norms(hidden_model(case, setup, sheet), example)
    recovered = recover(folded.model, example).model
    certificate = certify(recovered, clean, example, LIMIT, canonical=False)
    figures = {
        "max_rel_err": short(certificate.max_rel_err),
        "biases": short(max(certificate.parameters.values(), default=0.0)),
    }
    matched = {"match_frac": certificate.match_frac}
    formed, _ = conform(recovered, key.norms, example)
    given = inputs(case.model, case.seed)
    for way, anchor in (("reference", clean), ("key", key)):
        alignment = align(formed, anchor, example)
        matched[f"{way}_distinct"] = round(alignment.distinct, 6)
        # Of layers alone: what restored norms hold is scales, and not the suspect's own.
        residuals = compare(alignment, clean, example, LIMIT).quantiles((1.0,))
        figures |= {
            f"{way}_max_rel_err": short(residuals[1.0]),
            f"{way}_gap": short(gap(logits(alignment.model, given), logits(clean, given))),
        }
    good = certificate.folded and set(matched.values()) == {1.0} and max(figures.values()) <= LIMIT
    sheet.note(norms=len(folded.norms), **figures, **matched, good=good)
