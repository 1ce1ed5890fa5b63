"""`python -m canon_benchmarks verify_grid`: every attack on every model, recovered, aligned, held against a reference.

The attacks are those of the recovery grid, with permutation and scaling everywhere. Each recovered model is aligned
twice, by way of the reference and by way of the layout key alone, which goes through its file format. A case is good
when both give residuals of at most 1e-4 at all layers, every channel matched, and the function of the suspect. Cases
with a record are not run again.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from canon import zoo
from canon.bench.measures import exact_arithmetic
from canon.recovery import recover
from canon.verify import Alignment, LayoutKey, align, compare, register
from canon_benchmarks.grid import Record
from canon_benchmarks.model_grid import GridCase, attacked_model, choose, run_grid
from canon_benchmarks.subjects import MODELS, VARIANTS, gap, inputs, logits, subject

LIMIT: Final = 1e-4
"""Largest residual of a good case."""

OUT: Final = Path("docs/results/verify_grid.json")
RATIOS: Final = (0.2, 0.5)


def measure(case: GridCase, device: str = "cpu") -> Record:
    """Attack, recover, align in both ways and compare."""
    torch.set_num_threads(1)
    exact_arithmetic()
    clean = _clean(case.model, device)
    example = zoo.example_input(case.model).to(device)
    attacked, refusal = attacked_model(clean, example, case)
    if attacked is None:
        return {"left_out": refusal}
    recovered = recover(attacked, example).model
    del attacked
    key, share = _key(case.model, device)
    record: Record = {"key_share": share}
    for way, anchor in (("reference", clean), ("key", key)):
        started = time.perf_counter()
        alignment = align(recovered, anchor, example)
        record[f"{way}_seconds"] = round(time.perf_counter() - started, 3)
        record |= {f"{way}_{name}": value for name, value in _figures(alignment, clean, example, case).items()}
    record["good"] = all(
        record[f"{way}_max_rel_err"] <= LIMIT
        and record[f"{way}_match_frac"] == 1.0
        and record[f"{way}_parameters"] <= LIMIT
        and record[f"{way}_gap"] <= LIMIT
        for way in ("reference", "key")
    )
    return record


def _figures(alignment: Alignment, clean: nn.Module, example: Tensor, case: GridCase) -> Record:
    found = compare(alignment, clean, example, LIMIT)
    given = inputs(case.model, case.seed)
    return {
        "max_rel_err": _short(found.max_rel_err),
        "match_frac": found.match_frac,
        "parameters": _short(max(found.parameters.values(), default=0.0)),
        "distinct": round(alignment.distinct, 6),
        "gap": _short(gap(logits(alignment.model, given), logits(clean, given))),
    }


@functools.lru_cache(maxsize=2)
def _clean(name: str, device: str) -> nn.Module:
    return subject(name, device=device)


@functools.lru_cache(maxsize=2)
def _key(name: str, device: str) -> tuple[LayoutKey, float]:
    """A model's layout key as read from its file, and the file's size against the model's."""
    clean = _clean(name, device)
    key = register(clean, zoo.example_input(name).to(device))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layout.safetensors"
        key.save(path)
        size = path.stat().st_size
        loaded = LayoutKey.load(path)
    return loaded, round(size / sum(t.numel() * t.element_size() for t in clean.state_dict().values()), 5)


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def table(records: Sequence[Record]) -> str:
    """The grid as Markdown: per model and ratio the good cases and the worst figures."""
    lines = [
        "| model | ρ | good | worst residual, reference | worst residual, key | key, of the model's size |",
        "|---|---|---|---|---|---|",
    ]
    known = [name for name in MODELS if any(record["model"] == name for record in records)]
    for name in known:
        for ratio in sorted({record["ratio"] for record in records if record["model"] == name}):
            run = [r for r in records if r["model"] == name and r["ratio"] == ratio and "left_out" not in r]
            if not run:
                lines.append(f"| {name} | {ratio:g} | left out | | | |")
                continue
            good = f"{sum(r['good'] for r in run)}/{len(run)}"
            worst = [f"{max(r[f'{way}_max_rel_err'] for r in run):.1e}" for way in ("reference", "key")]
            lines.append(f"| {name} | {ratio:g} | {good} | {worst[0]} | {worst[1]} | {run[0]['key_share']:.2%} |")
    return "\n".join(lines) + "\n"


def summary(records: Sequence[Record]) -> str:
    """The grid in one paragraph."""
    run = [record for record in records if "left_out" not in record]
    if not run:
        return "No case has been run."
    worst = max(max(record["reference_max_rel_err"], record["key_max_rel_err"]) for record in run)
    text = f"{sum(record['good'] for record in run)} of {len(run)} cases are good; the worst residual is {worst:.2g}."
    if len(run) < len(records):
        text += f" {len(records) - len(run)} are left out: the attack was refused."
    return text


def page(records: Sequence[Record]) -> str:
    """The page that is kept with the documentation."""
    head = (
        "# Verification over the full grid\n\n"
        "Made by `python -m canon_benchmarks verify_grid` from `verify_grid.json`. Every attack variant with "
        "permutation "
        "and scaling everywhere; recovered, then aligned by way of the reference and by way of the layout key alone. A "
        "case is good when all layers' residuals, all norm parameters and the logits agree with the reference's to "
        "1e-4 and every channel is matched, both ways.\n\n"
    )
    return f"{head}{summary(records)}\n\n{table(records)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid; the status is 1 when a case is not good, 3 when some are still to do."""
    return run_grid(
        choose(arguments, __doc__, OUT, ratios=RATIOS, seeds=(0,), variants=VARIANTS), measure, page, summary
    )
