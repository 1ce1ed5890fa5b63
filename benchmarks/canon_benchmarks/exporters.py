"""`python -m canon_benchmarks exporters`: the models of the paper, hidden, through the tools that make ONNX files.

A copy of the reference is attacked (mix-opseq, ρ = 0.2, with permutation and scaling) and leaves as an ONNX file, by
one of torch's exporters with norms kept or folded, and then through an optimiser, a converter to float16 or a
quantizer. The file alone is judged, by the reference and by its layout key. A case is good when the network is equal,
contained or derived both times.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch
from torch import nn

from canon import zoo
from canon._files import write_text
from canon.attacks import attack
from canon.io import load
from canon.verify import LayoutKey, register
from canon_benchmarks.both_ways import judged_both_ways
from canon_benchmarks.exports import EXPORTERS, PASSES, write
from canon_benchmarks.grid import GridFile, Record, run_cases
from canon_benchmarks.subjects import measured, subject

KEYS: Final = ("model", "exporter", "norms", "then")
GOOD: Final = ("equal", "contained", "derived")
RATIO: Final = 0.2
OUT: Final = Path("docs/results/exporters.json")


@dataclass(frozen=True)
class ExportCase:
    """One way of a hidden network into a file."""

    model: str
    exporter: str
    norms: str
    then: str


def cases(models: Sequence[str]) -> list[ExportCase]:
    """Both exporters with norms kept and folded; every pass behind a file with norms and one without."""
    found = [(exporter, norms, "") for exporter in EXPORTERS for norms in ("kept", "folded")]
    for then in PASSES:
        found += [("dynamo", "kept", then), ("torchscript", "folded", then)]
    return [ExportCase(model, *rest) for rest in found for model in models]


@lru_cache(maxsize=1)
def _owned(name: str) -> tuple[nn.Module, LayoutKey, nn.Module]:
    """A reference, its layout key, and the reference in disguise."""
    example = zoo.example_input(name)
    reference = measured(subject(name), example)
    hidden = attack(reference, example, "mix-opseq", ratio=RATIO, seed=0).model
    return reference, register(reference, example, seed=0), hidden


def measure(case: ExportCase) -> Record:
    """Write one file and judge it."""
    torch.set_num_threads(1)
    example = zoo.example_input(case.model)
    reference, key, hidden = _owned(case.model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "suspect.onnx"
        write(hidden, example, path, case.exporter, case.then, fold=case.norms == "folded")
        size, suspect = path.stat().st_size, load(path)
    record: Record = {"bytes": size}
    return {**record, **judged_both_ways(suspect, example, reference, key, GOOD)}


def page(records: Sequence[Record]) -> str:
    """The page that is kept with the documentation."""
    good = sum(record["good"] for record in records)
    models = [name for name in zoo.PAPER_MODELS if any(r["model"] == name for r in records)]
    lines = [
        "# Through the tools that make ONNX files\n",
        "Made by `python -m canon_benchmarks exporters` from `exporters.json`. The suspect is the reference after "
        "mix-opseq at ρ = 0.2 with permutation and scaling, as an ONNX file; int8 by channel. Each cell has the "
        "answer to *same network?* by the reference and by the layout key; a dot: the file's outputs are not shown to "
        "be those of the reference, as rounding to int8 changes them; empty: not measured, which says nothing. Rows "
        "were measured while the code still changed.\n",
        f"{good} of {len(records)} files are *equal*, *contained* or *derived* by both.\n",
        f"| exporter | norms | then | {' | '.join(models)} |",
        f"|---|---|---|{'---|' * len(models)}",
    ]
    by_way: dict[tuple[str, ...], dict[str, Record]] = {}
    for record in records:
        by_way.setdefault((record["exporter"], record["norms"], record["then"]), {})[record["model"]] = record
    for case in cases(["any"]):
        way = (case.exporter, case.norms, case.then)
        if way in by_way:
            cells = [_cell(by_way[way].get(model)) for model in models]
            lines.append(f"| {' | '.join(way)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    one, two = (record[name]["network"] for name in ("reference", "key"))
    changed = " ·" if record["reference"]["function"] != "agree" else ""
    return f"{one if one == two else f'{one}, {two}'}{changed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases without a record; the status is 1 when one is not good."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks exporters", description=__doc__)
    parser.add_argument("--model", nargs="+", default=list(zoo.PAPER_MODELS), help="models of the zoo")
    parser.add_argument("--then", nargs="+", choices=("", *PASSES), help="only these passes")
    parser.add_argument("--minutes", type=float, help="begin no case after this time")
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file to write and to continue")
    chosen = parser.parse_args(arguments)
    wanted = [case for case in cases(chosen.model) if chosen.then is None or case.then in chosen.then]
    wanted.sort(key=lambda case: (case.then.startswith("int8"), chosen.model.index(case.model)))
    store = GridFile.open(chosen.out, KEYS)
    left = run_cases(wanted, measure, store, minutes=chosen.minutes)
    ordered = list(store.records.values())
    write_text(chosen.out.with_suffix(".md"), page(ordered), force=True)
    return 1 if left or not all(record["good"] for record in ordered) else 0
