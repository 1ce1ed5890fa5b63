"""From safetensors through an attack and an ONNX file back to the reference."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from canon import zoo
from canon.api import judge
from canon.attacks import attack
from canon.bench.lab import Setup
from canon.bench.measures.recovery import STRONG
from canon.bench.measures.sheet import Sheet, short
from canon.errors import import_extra
from canon.io import load, save
from canon.io.onnx import save_onnx
from canon_benchmarks.cases import Roundtrip
from canon_benchmarks.subjects import gap, inputs, logits, subject

RATIO: Final = 0.2
SAME_OUTPUTS: Final = 1e-5
SAME_WEIGHTS: Final = 1e-4


def measure_roundtrip(case: Roundtrip, setup: Setup, sheet: Sheet) -> None:
    """Go the whole way for one model."""
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
        sheet.begin()
        found = judge(load(suspected), example, reference=reference)
        sheet.lap("judge")
        save_onnx(found.recovered, example, recovered)
        expected = logits(reference, given)
        certificate = found.compared.certificate
        assert certificate is not None, "a network is held against its own reference"
        verdict, worst = found.evidence["verdict"]["kind"], short(certificate.max_rel_err)
        gaps = {
            "suspect_gap": short(gap(run_file(suspected, given)[0], expected)),
            "recovered_gap": short(gap(run_file(recovered, given)[0], expected)),
        }
        sheet.note(
            verdict=verdict, layers=len(certificate.layers), max_rel_err=worst, match_frac=certificate.match_frac,
            on_folded_forms=certificate.folded, on_canonical_forms=certificate.canonical,
            removed=found.evidence["recovery"]["removed"], reference_bytes=owned.stat().st_size,
            suspect_bytes=suspected.stat().st_size, recovered_bytes=recovered.stat().st_size, **gaps,
            good=verdict in STRONG and worst <= SAME_WEIGHTS and max(gaps.values()) <= SAME_OUTPUTS,
        )  # fmt: skip


def anonymize(path: Path) -> None:
    """Give every tensor and node of an ONNX file a name that says nothing."""
    onnx = import_extra("onnx", "onnx")
    model = onnx.load(path)
    names = {tensor.name: f"onnx::{index}" for index, tensor in enumerate(model.graph.initializer)}
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
    onnx.save(model, path)


def run_file(path: Path, *given: Tensor) -> list[Tensor]:
    """What onnxruntime computes for these inputs, in float64."""
    onnxruntime = import_extra("onnxruntime", "onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = {port.name: x.numpy() for port, x in zip(session.get_inputs(), given, strict=True)}
    return [torch.from_numpy(array).double() for array in session.run(None, feeds)]
