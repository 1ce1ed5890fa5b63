"""`python -m canon_benchmarks performance_table`: measurements of speed as a page, from the records that were kept.

One row per case: seconds by step, then the ratios that have a limit. A figure over its limit is marked.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from canon._files import write_text
from canon_benchmarks.performance import FOUR, LIMITS, limit_of

STEPS: Final = ("trace", "clone", "attack", "recover", "probe", "align", "certify", "forward", "pruning")
RATIOS: Final = {
    "trace_and_clone": "/ (trace + clone)",
    "forward": "/ forward",
    "pruning": "/ pruning",
    "pruning_a_copy": "/ (clone + pruning)",
    "probe": "/ probe",
    "reading": "/ reading",
    "verify": "certify / recover",
    "align_and_certify": "(align + certify) / recover",
    "memory": "memory",
    "attack_to_clone": "attack / clone",
    "attack_to_trace_and_clone": "attack / (trace + clone)",
}
HEADER: Final = ("model", "attack", "ρ", "parameters")

INTRODUCTION: Final = """# Speed

Made by `python -m canon_benchmarks performance_table` from the JSON files beside it; `make bench` measures.

All camouflage is on: permutation, scaling, expanded kernels, random split shares, chained dummies. Models marked `*`
would pass 10⁹ parameters with expanded kernels and have none. Seconds are medians with half the spread of the runs; a
figure without spread was measured once. `forward` is one pass of 32 images, `pruning` is Torch-Pruning removing the
same channels when told which; it does so in place, so beside it stands pruning a copy, which leaves the suspect as it
is, like recovery does. `memory` is the peak beyond what was in use before, relative to the attacked model. `certify`
aligns the recovered model and compares it with the reference, so it is verification as a whole; `align` is the same
without the comparison. Limits: {limits}, the last for {four} alone. They hold on a host; on a GPU, recovery is to
take less than a second.
"""

Record = dict[str, Any]


def seconds_rows(records: Sequence[Record]) -> list[list[str]]:
    """Seconds by step; behind each the spread of its runs in per cent of the median."""
    rows = [[*HEADER, *STEPS]]
    for record in records:
        times = [record["seconds"].get(step) for step in STEPS]
        rows.append([*_case(record), *("" if t is None else _time(t) for t in times)])
    return rows


def ratio_rows(records: Sequence[Record]) -> list[list[str]]:
    """What recovery costs relative to each yardstick."""
    shown = [name for name in RATIOS if any(name in record["ratios"] for record in records)]
    rows = [[*HEADER, *(RATIOS[name] for name in shown)]]
    for record in records:
        limits = {name: limit_of(name, record["variant"], record["device"]) for name in shown}
        cells = [_ratio(record["ratios"].get(name), limit) for name, limit in limits.items()]
        rows.append([*_case(record), *cells])
    return rows


def _case(record: Record) -> list[str]:
    size = record["parameters"]["attacked"] / 1e6
    kernels = "" if record["expanded_kernels"] else "*"
    return [record["model"], record["variant"], f"{record['ratio']:g}", f"{size:.0f} M{kernels}"]


def _time(times: Record) -> str:
    spread = 100 * (times["most"] - times["least"]) / times["median"] if times["median"] else 0.0
    return f"{times['median']:.3f}" if times["runs"] == 1 else f"{times['median']:.3f} ±{spread / 2:.0f}%"


def _ratio(value: float | None, limit: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" + (" OVER" if limit is not None and value > limit else "")


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned text."""
    sizes = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def page(documents: Sequence[Record]) -> str:
    """The page of one or more files of records."""
    limits = ", ".join(f"{RATIOS[name]} {limit:g}" for name, limit in LIMITS.items())
    parts = [INTRODUCTION.format(limits=limits, four=FOUR)]
    for document in documents:
        where = document["environment"]
        named = where["device"] if where["measured_on"].startswith("cuda") else where["machine"]
        parts.append(f"## {named}\n")
        note = f"torch {where['torch']}, Python {where['python']}, {where['threads']} threads"
        if "bandwidth" in where:
            note += f"; memory is read at {where['bandwidth'] / 1e9:.0f} GB/s"
        if "note" in where:
            note += f"; {where['note']}"
        parts.append(note + ".\n")
        parts += [markdown_table(seconds_rows(document["cases"])), markdown_table(ratio_rows(document["cases"]))]
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks performance_table", description=main.__doc__)
    folder = Path("docs/results")
    known = sorted(folder.glob("performance*.json"), key=lambda path: ("cuda" in path.stem, path.stem))
    parser.add_argument("records", nargs="*", type=Path, default=known, help="files that `make bench` wrote")
    parser.add_argument("--out", type=Path, default=folder / "performance.md", help="page to write")
    chosen = parser.parse_args(arguments)
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in chosen.records]
    write_text(chosen.out, page(documents), force=True)
    return 0
