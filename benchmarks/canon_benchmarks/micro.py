"""Micro-benchmarks: small measurements with a budget, listed in one place.

A measurement is a function without arguments; add it to `MEASUREMENTS` and `python -m canon.bench` shows it.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from canon._files import write_text
from canon._version import __version__


@dataclass(frozen=True)
class Measurement:
    """One number, and what it may be at most."""

    name: str
    value: float
    unit: str
    """Of the value; `x` for a ratio."""

    limit: float | None = None
    """The budget; None where there is none."""

    note: str = ""
    """What the value was made from."""

    @property
    def within(self) -> bool:
        """Whether the budget is kept."""
        return self.limit is None or self.value <= self.limit


def table(measurements: Iterable[Measurement]) -> str:
    """Measurements as aligned lines of text."""
    rows = [("measurement", "value", "limit", "", "")]
    for m in measurements:
        limit = "" if m.limit is None else f"{m.limit:g} {m.unit}"
        verdict = "" if m.limit is None else "ok" if m.within else "OVER"
        rows.append((m.name, f"{m.value:.3g} {m.unit}", limit, verdict, m.note))
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def save(measurements: Iterable[Measurement], target: Path) -> None:
    """Keep measurements as JSON, with what they were measured on."""
    where = {
        "canon": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    record = {"environment": where, "measurements": [{**asdict(m), "within": m.within} for m in measurements]}
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, json.dumps(record, indent=1) + "\n", force=True)
