"""`python -m canon_benchmarks locate_time`: what locating a network costs, beside what recovery costs in the same run.

`make bench` measures the same among its small measurements.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from canon import zoo
from canon._files import write_text
from canon.containment import locate
from canon.recovery import recover
from canon_benchmarks.clock import Timed, peak_extra_bytes, times_of
from canon_benchmarks.micro import Measurement, save
from canon_benchmarks.performance import Case, attacked
from canon_benchmarks.subjects import subject

OUT: Final = Path("docs/results/locate_time.json")
GROWTH: Final = Path("docs/results/scale_locate.json")
"""What `python -m canon_benchmarks scale --step locate` wrote."""

TIME: Final = 2.0
"""Locating may take so many times what recovery takes."""

MEMORY: Final = 0.5
"""Its peak, beyond what was in use, relative to the suspect."""


def measure_locate(name: str, variant: str = "mix-opseq", ratio: float = 0.2, repeats: int = 5) -> Measurement:
    """Time of locating the owner's model over that of recovering the same suspect."""
    owner, example = subject(name), zoo.example_input(name)
    _, suspect = attacked(Case(name, variant, ratio), owner, example)
    steps = {
        "recover": Timed(lambda: recover(suspect, example), large=True),
        "locate": Timed(lambda: locate(suspect, owner, example), large=True),
    }
    times = times_of(steps, repeats=repeats, device="cpu")
    ours, theirs = times["locate"].median, times["recover"].median
    note = f"locate {ours * 1e3:.0f} ms, recover {theirs * 1e3:.0f} ms"
    return Measurement(f"locate {name} {variant} {ratio}", ours / theirs, "x", limit=TIME, note=note)


def measure_memory(name: str, variant: str = "mix-opseq", ratio: float = 0.2) -> Measurement:
    """Peak memory of locating the owner's model, relative to the suspect."""
    owner, example = subject(name), zoo.example_input(name)
    _, suspect = attacked(Case(name, variant, ratio), owner, example)
    size = sum(tensor.numel() * tensor.element_size() for tensor in suspect.state_dict().values())
    locate(suspect, owner, example)  # the first call loads libraries
    extra = peak_extra_bytes(lambda: locate(suspect, owner, example), "cpu")
    note = "" if extra is None else f"{extra / 1e6:.0f} MB beside a suspect of {size / 1e6:.0f} MB"
    share = 0.0 if extra is None else extra / size
    return Measurement(f"locate {name} {variant} {ratio}, memory", share, "x", limit=MEMORY, note=note)


def page(document: dict[str, Any], growth: dict[str, Any] | None) -> str:
    """The measurements as Markdown; what is over its limit is bold."""
    where = document["environment"]
    lines = [
        "# What locating costs", "",
        "Made by `python -m canon_benchmarks locate_time --page` from `locate_time.json` and "
        "`scale_locate.json`. Processor "
        "time of one thread, medians; mix-opseq at ρ = 0.2 with expanded kernels on networks with random weights, "
        "located by the owner's model. Time is relative to recovering the same suspect in the same run, memory, the "
        "extracted model included, to the "
        f"suspect. torch {where['torch']}, Python {where['python']}.", "",
        "| measurement | value | limit | |", "|---|---|---|---|",
    ]  # fmt: skip
    for item in document["measurements"]:
        value = f"{item['value']:.2f}" if item["within"] else f"**{item['value']:.2f}**"
        lines.append(f"| {item['name']} | {value} | {item['limit']:g} | {item['note']} |")
    if growth is not None:
        lines += ["", "## Growth", "", "![Time and peak memory over the number of parameters](scale_locate.svg)", ""]
        lines += ["Slopes of time over parameters, both as logarithms; 1 is linear.", ""]
        lines += [
            "| networks | slope | parameters | seconds | peak memory relative to the suspect | the extracted model "
            "| beside it |",
            "|---|---|---|---|---|---|---|",
        ]
        for family in dict.fromkeys(record["family"] for record in growth["records"]):
            last = max((r for r in growth["records"] if r["family"] == family), key=lambda r: int(r["parameters"]))
            size = 4 * last["parameters"]
            share, made = last["peak_extra_bytes"] / size, last["made_bytes"] / size
            told = f"{share:.2f} | {made:.2f} | {share - made:.2f}"
            cells = f"{growth['slopes'][family]:.2f} | {last['parameters']:,} | {last['seconds']:.1f} | {told}"
            lines.append(f"| {family} | {cells} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the four models of the paper, and write records and page; the status is 1 when a limit is passed."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks locate_time", description=main.__doc__)
    parser.add_argument("--page", action="store_true", help="make the page, measure nothing")
    parser.add_argument("--repeats", type=int, default=5, help="runs per step")
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file to write")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not chosen.page:
        found = [measure_locate(name, repeats=chosen.repeats) for name in zoo.PAPER_MODELS]
        save([*found, *(measure_memory(name) for name in zoo.PAPER_MODELS)], chosen.out)
    document = json.loads(chosen.out.read_text(encoding="utf-8"))
    growth = json.loads(GROWTH.read_text(encoding="utf-8")) if GROWTH.exists() else None
    write_text(chosen.out.with_suffix(".md"), page(document, growth), force=True)
    return 0 if all(item["within"] for item in document["measurements"]) else 1
