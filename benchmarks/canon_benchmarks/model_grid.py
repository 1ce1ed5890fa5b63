"""What a grid over attacked models has: its cases, its options and its way to run."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from canon._files import write_text
from canon_benchmarks.grid import GridFile, Record, run_cases
from canon_benchmarks.subjects import MODELS, RATIOS, SEEDS, VARIANTS

KEYS: Final = ("model", "variant", "ratio", "seed")
"""The fields that name a case."""


@dataclass(frozen=True)
class GridCase:
    """One attack on one model."""

    model: str
    variant: str
    ratio: float
    seed: int


def choose(
    arguments: Sequence[str] | None,
    description: str | None,
    out: Path,
    *,
    models: Sequence[str] = MODELS,
    ratios: Sequence[float] = RATIOS,
    seeds: Sequence[int] = SEEDS,
    variants: Sequence[str] = VARIANTS,
    known: Sequence[str] = VARIANTS,
) -> argparse.Namespace:
    """Read the options that a grid over models has; `known`: the attacks that may be named."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--models", nargs="+", default=models, choices=MODELS, metavar="NAME", help="models to attack")
    parser.add_argument("--variants", nargs="+", default=variants, choices=known, metavar="NAME", help="attacks")
    parser.add_argument("--ratios", nargs="+", type=float, default=ratios, help="shares of channels that are added")
    parser.add_argument("--seeds", nargs="+", type=int, default=seeds, help="seeds of the attacks")
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run beside each other")
    parser.add_argument("--minutes", type=float, help="begin no case after this time; run again to go on")
    parser.add_argument("--out", type=Path, default=out, help="the JSON file to write and to continue")
    return parser.parse_args(arguments)


def on_device(function: Callable[..., Record], device: str) -> Callable[[Any], Record]:
    """A measurement on a device, in a form that other processes can take."""
    return functools.partial(function, device=device)


def run_grid(
    chosen: argparse.Namespace,
    measure: Callable[..., Record],
    page: Callable[[Sequence[Record]], str],
    summary: Callable[[Sequence[Record]], str],
) -> int:
    """Run the chosen cases, write the page beside the records, and say what came of it.

    The status is 1 when a case is not good, 3 when some are still to do.
    """
    cases = [
        GridCase(model, variant, ratio, seed)
        for ratio, model, variant, seed in product(chosen.ratios, chosen.models, chosen.variants, chosen.seeds)
    ]
    store = GridFile.open(chosen.out, KEYS)
    left = run_cases(cases, on_device(measure, chosen.device), store, jobs=chosen.jobs, minutes=chosen.minutes)
    records = list(store.records.values())
    write_text(chosen.out.with_suffix(".md"), page(records), force=True)
    sys.stdout.write(summary(records) + (f" {left} still to do.\n" if left else "\n"))
    if any(not record.get("good", True) for record in records):
        return 1
    return 3 if left else 0
