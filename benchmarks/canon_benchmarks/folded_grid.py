"""`python -m canon_benchmarks folded_grid`: attacked models whose norms were folded away, recovered and certified.

Every attack on the models of the paper, with permutation and scaling everywhere; then all norms are folded into the
layers before them, as exporters do. What is left is recovered, certified on folded forms, and put back into the owner's
layout by way of the reference and by way of the layout key alone. A case is good when all residuals are at most 1e-4,
folded and with the owner's scales, every channel is matched, and the function is the clean model's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import nn

from canon import zoo
from canon.api import certify
from canon.bench.measures import exact_arithmetic
from canon.recovery import recover
from canon.rewrite import fold_norms
from canon.verify import LayoutKey, align, compare, register
from canon.verify.forms import conform
from canon_benchmarks.grid import Record
from canon_benchmarks.model_grid import GridCase, attacked_model, choose, run_grid
from canon_benchmarks.subjects import VARIANTS, gap, inputs, logits, subject

LIMIT: Final = 1e-4
"""Largest residual of a good case."""

OUT: Final = Path("docs/results/folded_grid.json")
MODELS: Final = ("resnet18", "efficientnet_b0", "inception_v3", "densenet121")
RATIOS: Final = (0.2,)


def measure(case: GridCase, device: str = "cpu") -> Record:
    """Attack, fold, recover, certify, and align in both ways."""
    torch.set_num_threads(1)
    exact_arithmetic()
    clean, key = _owner(case.model, device)
    example = zoo.example_input(case.model).to(device)
    attacked, refusal = attacked_model(clean, example, case)
    if attacked is None:
        return {"left_out": refusal}
    folded = fold_norms(attacked, example)
    recovered = recover(folded.model, example).model
    certificate = certify(recovered, clean, example, LIMIT, canonical=False)
    record: Record = {
        "norms": len(folded.norms),
        "max_rel_err": _short(certificate.max_rel_err),
        "match_frac": certificate.match_frac,
        "biases": _short(max(certificate.parameters.values(), default=0.0)),
    }
    formed, _ = conform(recovered, key.norms, example)
    given = inputs(case.model, case.seed)
    for way, anchor in (("reference", clean), ("key", key)):
        alignment = align(formed, anchor, example)
        record |= {
            f"{way}_max_rel_err": _short(compare(alignment, clean, example, LIMIT).max_rel_err),
            f"{way}_distinct": round(alignment.distinct, 6),
            f"{way}_gap": _short(gap(logits(alignment.model, given), logits(clean, given))),
        }
    figures = ("max_rel_err", "biases", "reference_max_rel_err", "reference_gap", "key_max_rel_err", "key_gap")
    matched = all(record[name] == 1.0 for name in ("match_frac", "reference_distinct", "key_distinct"))
    record["good"] = certificate.folded and matched and all(record[name] <= LIMIT for name in figures)
    return record


@functools.lru_cache(maxsize=2)
def _owner(name: str, device: str) -> tuple[nn.Module, LayoutKey]:
    clean = subject(name, device=device)
    return clean, register(clean, zoo.example_input(name).to(device))


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def table(records: Sequence[Record]) -> str:
    """The grid as Markdown: per model the good cases and the worst figures."""
    lines = [
        "| model | ρ | norms | good | worst residual, folded | with the owner's scales, reference | key |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in MODELS:
        for ratio in sorted({record["ratio"] for record in records if record["model"] == name}):
            run = [r for r in records if r["model"] == name and r["ratio"] == ratio and "left_out" not in r]
            if not run:
                continue
            worst = [max(r[f"{way}max_rel_err"] for r in run) for way in ("", "reference_", "key_")]
            figures = " | ".join(f"{value:.1e}" for value in worst)
            good = f"{sum(r['good'] for r in run)}/{len(run)}"
            lines.append(f"| {name} | {ratio:g} | {run[0]['norms']} | {good} | {figures} |")
    return "\n".join(lines) + "\n"


def page(records: Sequence[Record]) -> str:
    """The page that is kept with the documentation."""
    run = [record for record in records if "left_out" not in record]
    return (
        "# Suspects whose norms were folded away\n\n"
        "Made by `python -m canon_benchmarks folded_grid` from `folded_grid.json`. Every attack variant with "
        "permutation "
        "and scaling everywhere; then all norms that can be are folded into the layers before them. Recovered, "
        "certified on folded forms, and put back into the owner's layout by way of the reference and of the layout key "
        "alone. A case is good when all residuals and the logits agree with the clean model's to 1e-4 and every "
        "channel is matched.\n\n"
        f"{sum(record['good'] for record in run)} of {len(run)} cases are good.\n\n{table(records)}"
    )


def summary(records: Sequence[Record]) -> str:
    """The grid in one sentence."""
    return f"{sum(bool(record.get('good')) for record in records)} of {len(records)} cases are good."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid; the status is 1 when a case is not good, 3 when some are still to do."""
    chosen = choose(arguments, __doc__, OUT, models=MODELS, ratios=RATIOS, seeds=(0,), variants=VARIANTS)
    return run_grid(chosen, measure, page, summary)
