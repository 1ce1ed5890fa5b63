"""What layout keys hold: `python -m canon_benchmarks key_sizes`. The paper's models with random weights.

For a default and a robust key: exact numbers per channel, coarse numbers per row, the size of the file relative to the
model's, and the relative noise on every weight under which channels of the widest layer are known again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from canon import zoo
from canon._environment import environment
from canon._files import write_text
from canon.graph.tensors import tensor_names
from canon.verify import register
from canon_benchmarks.subjects import subject

OUT: Final = Path("docs/results/key_sizes.json")
MODELS: Final = ("resnet18", "efficientnet_b0", "inception_v3", "densenet121")


def measure(name: str, robust: bool) -> dict[str, Any]:
    """One key."""
    model, example = subject(name), zoo.example_input(name)
    key = register(model, example, robust=robust, seed=0)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensor_names(model)[0].values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layout.key"
        key.save(path)
        share = path.stat().st_size / size
    assert key.portrait is not None, "new keys have one"
    return {
        "model": name, "robust": robust, "exact": key.layout.numbers, "bytes": 4 if key.units is None else 2,
        "rows": key.portrait.numbers, "share": round(share, 4), "noise": round(key.noise or 0.0, 3),
    }  # fmt: skip


def page(records: Sequence[dict[str, Any]]) -> str:
    """The records for people."""
    lines = [
        "# What layout keys hold", "",
        "Made by `python -m canon_benchmarks key_sizes` from `key_sizes.json`, which it writes; see",
        "[containment](../containment.md#keys).", "",
        "| model | key | exact numbers per channel | coarse numbers per row | of the model's size | noise |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in records:
        kind, exact = "robust" if r["robust"] else "default", f"{r['exact']} of {r['bytes']} bytes"
        lines.append(f"| {r['model']} | {kind} | {exact} | {r['rows']} | {r['share']:.1%} | {r['noise']:.2f} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and page."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks key_sizes", description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args(arguments)
    records = [measure(name, robust) for name in MODELS for robust in (False, True)]
    document = {"records": records, "environment": environment() | {"device": "cpu"}}
    write_text(chosen.out, json.dumps(document, indent=1) + "\n", force=True)
    write_text(chosen.out.with_suffix(".md"), page(records), force=True)
    return 0
