"""`python -m canon_benchmarks onnx_proof`: from safetensors through an attack and an ONNX file back to the reference.

The reference is written as safetensors. A copy is attacked with all camouflage on and leaves as an ONNX file, with
norms kept or folded away, with the names of its tensors or with names that say nothing. The file alone is then read,
recovered and judged against the reference, and what was recovered is written as ONNX again and run by onnxruntime. A
case is good when the verdict is proved or matches, every residual is at most 1e-4, and the outputs of the suspect and
of the recovered file agree with the reference's to 1e-5.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from canon import zoo
from canon._files import write_text
from canon.api import judge
from canon.attacks import attack
from canon.errors import MissingExtraError
from canon.io import load, save
from canon.io.onnx import save_onnx
from canon_benchmarks.grid import GridFile, Record, run_cases
from canon_benchmarks.subjects import gap, inputs, logits, subject

KEYS: Final = ("model", "norms", "names")
FORMS: Final = (("kept", "kept"), ("folded", "anonymous"), ("kept", "anonymous"), ("folded", "kept"))
"""What becomes of norms and names in the suspect's file."""

RATIO: Final = 0.2
SAME_OUTPUTS: Final = 1e-5
SAME_WEIGHTS: Final = 1e-4
OUT: Final = Path("docs/results/onnx.json")


@dataclass(frozen=True)
class ProofCase:
    """One way through the files."""

    model: str
    norms: str
    names: str


def measure(case: ProofCase) -> Record:
    """Go the whole way for one model."""
    torch.set_num_threads(1)
    example, given = zoo.example_input(case.model), inputs(case.model)
    with tempfile.TemporaryDirectory() as folder:
        owned, suspected, recovered = (Path(folder) / name for name in ("a.safetensors", "b.onnx", "c.onnx"))
        save(subject(case.model), owned)
        reference = load(owned, case.model)
        attacked = attack(
            reference, example, "mix-opseq", ratio=RATIO, seed=0, permute=True, scale=True, expand_kernels=True,
            split_shares="random", chain=True,
        ).model  # fmt: skip
        save_onnx(attacked, example, suspected, fold_norms=case.norms == "folded")
        del attacked
        if case.names == "anonymous":
            anonymize(suspected)
        started = time.process_time()
        found = judge(load(suspected), example, reference=reference)
        seconds = time.process_time() - started
        save_onnx(found.recovered, example, recovered)
        expected = logits(reference, given)
        record: Record = {
            "verdict": found.evidence["verdict"]["kind"],
            **_certified(found.compared.certificate),
            "removed": found.evidence["recovery"]["removed"],
            "reference_bytes": owned.stat().st_size,
            "suspect_bytes": suspected.stat().st_size,
            "recovered_bytes": recovered.stat().st_size,
            "suspect_gap": _short(gap(run_file(suspected, given), expected)),
            "recovered_gap": _short(gap(run_file(recovered, given), expected)),
            "seconds": round(seconds, 2),
        }
    same = max(record["suspect_gap"], record["recovered_gap"]) <= SAME_OUTPUTS
    record["good"] = record["verdict"] in ("proved", "matches") and record["max_rel_err"] <= SAME_WEIGHTS and same
    return record


def _certified(certificate: Any) -> Record:
    return {
        "layers": len(certificate.layers),
        "max_rel_err": _short(certificate.max_rel_err),
        "match_frac": certificate.match_frac,
        "on_folded_forms": certificate.folded,
        "on_canonical_forms": certificate.canonical,
    }


def anonymize(path: Path) -> None:
    """Give every tensor and node of an ONNX file a name that says nothing."""
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise MissingExtraError("onnx", "onnx") from error
    model = onnx.load(path)
    names = {tensor.name: f"onnx::{index}" for index, tensor in enumerate(model.graph.initializer)}
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
    onnx.save(model, path)


def run_file(path: Path, given: Tensor) -> Tensor:
    """What onnxruntime computes for these inputs, in float64."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise MissingExtraError("onnxruntime", "onnx") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (port,) = session.get_inputs()
    return torch.from_numpy(session.run(None, {port.name: given.numpy()})[0]).double()


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def page(records: Sequence[Record]) -> str:
    """The page that is kept with the documentation."""
    lines = [
        "# From safetensors through an attack and ONNX, and back", "",
        "Made by `python -m canon_benchmarks onnx_proof` from `onnx.json`. The suspect is an ONNX file: "
        "mix-opseq at ρ = "
        "0.2 with permutation, scaling, expanded kernels, random split shares and chained dummies; its norms kept or "
        "folded away, its names kept or replaced. The gaps are onnxruntime's outputs against the reference's.", "",
        f"{sum(r['good'] for r in records)} of {len(records)} cases are good.", "",
        "| model | norms | names | verdict | worst residual | layers | suspect, MB | recovered, MB | gap, suspect "
        "| gap, recovered |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {r['model']} | {r['norms']} | {r['names']} | {r['verdict']} | {r['max_rel_err']:.1e} | {r['layers']} "
        f"| {r['suspect_bytes'] / 1e6:.0f} | {r['recovered_bytes'] / 1e6:.0f} | {r['suspect_gap']:.1e} "
        f"| {r['recovered_gap']:.1e} |"
        for r in records
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Go through all cases without a record; the status is 1 when one is not good, 3 when some are still to do."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks onnx_proof", description=__doc__)
    parser.add_argument(
        "--models",
        nargs="+",
        default=zoo.PAPER_MODELS,
        choices=zoo.PAPER_MODELS,
        metavar="NAME",
        help="models to attack",
    )
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file to write and to continue")
    parser.add_argument("--minutes", type=float, help="begin no case after this time; run again to go on")
    chosen = parser.parse_args(arguments)
    cases = [ProofCase(model, norms, names) for norms, names in FORMS for model in chosen.models]
    store = GridFile.open(chosen.out, KEYS)
    left = run_cases(cases, measure, store, minutes=chosen.minutes)
    ordered = sorted(store.records.values(), key=lambda r: (zoo.PAPER_MODELS.index(r["model"]), r["norms"], r["names"]))
    write_text(chosen.out.with_suffix(".md"), page(ordered), force=True)
    good = sum(record["good"] for record in store.records.values())
    sys.stdout.write(f"{good} of {len(store.records)} cases are good, {left} have no record.\n")
    if good < len(store.records):
        return 1
    return 3 if left else 0
