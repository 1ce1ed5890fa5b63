"""`python -m canon_benchmarks onnx_files FILE...`: what Canon makes of ONNX files from elsewhere.

Every file is read, run beside onnxruntime on random inputs, traced and recovered. A network that nobody attacked should
come back unchanged: what recovery would remove is listed with the reason. It is then attacked (mix-opseq, ρ = 0.2, with
permutation and scaling), recovered, and certified by the file. Records are kept in one JSON file, by the
package that a file comes from and its name.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from canon._files import write_text
from canon.attacks import attack
from canon.errors import BenchError, CanonError, MissingExtraError
from canon.graph import ChannelGraph, trace
from canon.graph.tensors import tensor_names
from canon.io import Limits
from canon.io.onnx import example_input, load_onnx
from canon.io.onnx.parse import parse
from canon.recovery import recover
from canon.verify import certify
from canon.verify.digest import file_digest
from canon.zoo.compatibility import import_torchvision
from canon_benchmarks.grid import GridFile, Record, run_cases

KEYS: Final = ("package", "file")
SAME: Final = 1e-4
"""Largest difference from onnxruntime's outputs, relative to the largest of them."""

ROUNDING: Final = 1e-6
"""And absolute: onnxruntime's own functions, such as its sigmoid, are only so exact."""

RATIO: Final = 0.2
SIDE: Final = 64
"""Size of axes that a file leaves open."""

OUT: Final = Path("docs/results/onnx_files.json")


@dataclass(frozen=True)
class FileCase:
    """A file and where it comes from."""

    package: str
    file: str
    folder: str
    size: tuple[int, ...] | None
    compare: bool = False


def measure(case: FileCase) -> Record:
    """Read one file, run it, trace it and recover it."""
    torch.set_num_threads(1)
    path = Path(case.folder) / case.file
    record: Record = {"sha256": file_digest(path), "bytes": path.stat().st_size}
    try:
        graph = parse(path, Limits())
        counted = Counter(node.op for node in graph.nodes)
        record |= {"producer": graph.producer, "opset": graph.opset, "operators": dict(sorted(counted.items()))}
        model = load_onnx(path, Limits(), size=case.size)
        record["parameters"] = sum(p.numel() for p in model.parameters())
        example = example_input(model, side=SIDE)
        record["inputs"] = [list(x.shape) for x in example]
        largest, gap = difference(model, path, example)
        record |= {"largest_output": _short(largest), "difference": _short(gap)}
        traced = trace(model, example)
        pins = Counter(space.pins[0].reason for space in traced.spaces if space.pins)
        record |= {"spaces": len(traced.spaces), "free": len(traced.free), "pins": dict(sorted(pins.items()))}
        result = recover(model, example)
    except CanonError as error:
        place = f" (at {error.where})" if error.where and error.where != str(path) else ""
        return {**record, "outcome": "refused", "reason": f"{error.message}{place}"}
    found = {
        space.name: {**space.counts, "dead": dead_channels(model, traced, space.name)}
        for space in result.report.spaces
        if space.counts
    }
    record |= {"removed": result.report.removed, "merged": result.report.merged, "found": found}
    if case.compare:
        record["onnx2torch"] = by_onnx2torch(path, example)
    same = gap <= SAME * largest + ROUNDING
    record["outcome"] = ("changed" if result.report.changed else "unchanged") if same else "outputs differ"
    return record


def after_attack(path: Path, size: Sequence[int] | None) -> Record:
    """A network without dead channels, attacked and recovered: what was added, what is left of it, the certificate."""
    torch.set_num_threads(1)
    model = load_onnx(path, Limits(), size=size)
    example = example_input(model, side=SIDE)
    try:
        model = recover(model, example).model
        hidden = attack(model, example, "mix-opseq", ratio=RATIO, seed=0).model
        found = recover(hidden, example).model
        given = certify(found, model, example)
    except CanonError as error:
        return {"outcome": "refused", "reason": error.message}
    sizes = [sum(p.numel() for p in one.parameters()) for one in (model, hidden, found)]
    return {"added": sizes[1] - sizes[0], "left": sizes[2] - sizes[0], "certified": given.passed}


def difference(model: nn.Module, path: Path, example: tuple[Tensor, ...]) -> tuple[float, float]:
    """The largest output of onnxruntime, and the largest difference from it."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise MissingExtraError("onnxruntime", "onnx") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = {port.name: x.numpy() for port, x in zip(session.get_inputs(), example, strict=True)}
    expected = [torch.from_numpy(array).double() for array in session.run(None, feeds)]
    with torch.no_grad():
        result = model(*example)
    got = [result] if isinstance(result, Tensor) else list(result)
    largest = max(float(theirs.abs().max()) for theirs in expected)
    gaps = [float((mine.double() - theirs).abs().max()) for mine, theirs in zip(got, expected, strict=True)]
    return largest, max(gaps)


def dead_channels(model: nn.Module, graph: ChannelGraph, name: str) -> int:
    """Channels of a space that the file itself holds as zeros: their rows, or a depthwise kernel behind them."""
    space = graph.space_named(name)
    tensors, _ = tensor_names(model)
    tiny = torch.finfo(torch.float32).tiny
    rows = torch.zeros(space.width)
    for producer in space.producers:
        linear = graph.maps[producer.map]
        weight = tensors[linear.weight].detach().movedim(linear.row_axis, 0).flatten(1)
        part = weight[producer.offset : producer.offset + space.width * producer.repeat]
        rows = rows.maximum(part.reshape(space.width, -1).abs().amax(1).float())
    dead = rows < tiny
    for stage in space.stages:
        if stage.kind == "depthwise":
            kernel = tensors[stage.params["weight"]].detach()[stage.offset : stage.offset + space.width * stage.repeat]
            dead |= kernel.reshape(space.width, -1).abs().amax(1).float() < tiny
    return int(dead.sum())


def by_onnx2torch(path: Path, example: tuple[Tensor, ...]) -> str:
    """What the converter onnx2torch makes of a file, and how many spaces can be followed in it."""
    import_torchvision()  # which it imports, and which needs some help with a torch for the CPU
    try:
        from onnx2torch import convert
    except ModuleNotFoundError as error:
        raise BenchError("the package 'onnx2torch' is not installed", hint="pip install onnx2torch") from error
    try:
        model: nn.Module = convert(str(path)).eval()
        largest, gap = difference(model, path, example)
    except Exception as error:
        return f"failed: {type(error).__name__}"
    if gap > SAME * largest + ROUNDING:
        return "outputs differ"
    try:
        traced = trace(model, example)
    except CanonError as error:
        return f"converted, not traced: {type(error).__name__}"
    return f"{len(traced.free)} of {len(traced.spaces)} spaces are free"


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _attacked(found: Record | None) -> str:
    if found is None:
        return ""
    if "reason" in found:
        return f"refused: {found['reason']}"
    if not found["added"]:
        return "no place for it; certified" if found["certified"] else "no place for it; not certified"
    share = "all" if not found["left"] else f"{1 - found['left'] / found['added']:.0%}"
    return f"{share} of {found['added']:,} numbers gone; {'certified' if found['certified'] else 'not certified'}"


def table(records: Sequence[Record]) -> str:
    """The records as Markdown."""
    lines = [
        "| package | file | MB | operators | free spaces | difference | outcome | after attack |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in records:
        names = ", ".join(r.get("operators", {}))
        free = f"{r['free']} of {r['spaces']}" if "spaces" in r else ""
        gap = f"{r['difference']:.1e} of {r['largest_output']:.1e}" if "difference" in r else ""
        what = r.get("reason") or "; ".join(
            ", ".join(f"{count} {kind}" for kind, count in kinds.items()) + f" at `{space}`"
            for space, kinds in r.get("found", {}).items()
        )
        outcome = f"{r['outcome']}: {what}" if what else r["outcome"]
        lines.append(
            f"| {r['package']} | {r['file']} | {r['bytes'] / 1e6:.1f} | {names} | {free} | {gap} | {outcome} "
            f"| {_attacked(r.get('attacked'))} |"
        )
    return "\n".join(lines) + "\n"


def page(records: Sequence[Record]) -> str:
    """The page that is kept with the documentation."""
    read = [record for record in records if record["outcome"] != "refused"]
    same = sum(record["outcome"] == "unchanged" for record in read)
    head = (
        "# ONNX files from public packages\n\n"
        "Made by `python -m canon_benchmarks onnx_files` from `onnx_files.json`. The difference is the largest from "
        "onnxruntime's outputs on random inputs, beside the largest output. *Dead* are channels whose weights are zero "
        "in the file itself. After attack: the network as it came back, hidden by mix-opseq at ρ = 0.2 with "
        "permutation and scaling, recovered, and certified; empty where it was not tried.\n\n"
        f"{len(read)} of {len(records)} files are read; {same} of these come back from recovery unchanged."
    )
    tried = [record["attacked"] for record in read if "attacked" in record]
    good = sum(found.get("certified", False) for found in tried)
    head += f" Of {len(tried)} that were attacked, {good} were recovered and certified."
    others = [record["onnx2torch"] for record in read if "onnx2torch" in record]
    if others:
        good = sum(text.endswith("free") or text.startswith("converted") for text in others)
        head += f" Of the {len(others)} that were also given to onnx2torch, it converts {good} with the same outputs."
    return f"{head}\n\n{table(records)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at all files without a record; the status is 1 when one came back changed or with other outputs."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks onnx_files", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="ONNX files")
    parser.add_argument("--package", default="", help="the package that they come from, with its version")
    parser.add_argument("--size", type=int, nargs="+", help="shape of one input, where the file leaves it open")
    parser.add_argument("--compare", action="store_true", help="also try the converter onnx2torch, if it is installed")
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file to write and to continue")
    chosen = parser.parse_args(arguments)
    size = tuple(chosen.size) if chosen.size else None
    cases = [FileCase(chosen.package, path.name, str(path.parent), size, chosen.compare) for path in chosen.files]
    store = GridFile.open(chosen.out, KEYS)
    left = run_cases(cases, measure, store)
    cases = [case for case in cases if (case.package, case.file) in store.records]
    found = [store.records[case.package, case.file] for case in cases]
    for case, record in zip(cases, found, strict=True):
        path = Path(case.folder) / case.file
        if record["outcome"] != "refused" and "attacked" not in record and record["sha256"] == file_digest(path):
            record["attacked"] = after_attack(path, record.get("size"))
        for key in ("folder", "compare"):
            record.pop(key, None)
        sys.stdout.write(f"{record['file']}: {record['outcome']} {json.dumps(record.get('reason', ''))}\n")
    store.save()
    ordered = sorted(store.records.values(), key=lambda record: (record["package"], record["file"]))
    write_text(chosen.out.with_suffix(".md"), page(ordered), force=True)
    return 1 if left or any(record["outcome"] in ("changed", "outputs differ") for record in found) else 0
