"""What Canon makes of ONNX files from elsewhere.

Every file is read, run beside onnxruntime on random inputs, traced and recovered. A network that nobody attacked should
come back unchanged: what recovery would remove is noted with the reason. It is then attacked (mix-opseq, ρ = 0.2, with
permutation and scaling), recovered, and certified by the file.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.attacks import attack
from canon.bench.lab import Setup
from canon.bench.measures.attacked import count
from canon.bench.measures.sheet import Sheet, short
from canon.errors import BenchError, CanonError
from canon.graph import ChannelGraph, trace
from canon.graph.tensors import tensor_names
from canon.io import Limits
from canon.io.onnx import example_input, load_onnx
from canon.io.onnx.parse import parse
from canon.recovery import recover
from canon.verify import certify
from canon.verify.digest import file_digest
from canon.zoo.compatibility import import_torchvision
from canon_benchmarks.cases import Foreign
from canon_benchmarks.measures.roundtrip import run_file

SAME: Final = 1e-4
"""Largest difference from onnxruntime's outputs, relative to the largest of them."""

ROUNDING: Final = 1e-6
"""And absolute: onnxruntime's own functions, such as its sigmoid, are only so exact."""

RATIO: Final = 0.2
SIDE: Final = 64
"""Size of axes that a file leaves open."""


def measure_foreign(case: Foreign, setup: Setup, sheet: Sheet) -> None:
    """Look at one file; one that Canon refuses to read is no failure, and its reason is noted."""
    if setup.data is None:
        raise BenchError("the files lie in the folder of datasets, and none was given", hint="Give --data FOLDER")
    path = setup.data / case.package / case.file
    try:
        sheet.note(**_read(path, case, sheet))
    except CanonError as error:
        place = f" (at {error.where})" if error.where and error.where != str(path) else ""
        sheet.note(result="refused", reason=f"{error.message}{place}")
    sheet.note(good=sheet.metrics["result"] in ("unchanged", "refused"))


def _read(path: Path, case: Foreign, sheet: Sheet) -> dict[str, Any]:
    sheet.note(sha256=file_digest(path), bytes=path.stat().st_size)
    graph = parse(path, Limits())
    operators = dict(sorted(Counter(node.op for node in graph.nodes).items()))
    sheet.note(producer=graph.producer, opset=graph.opset, operators=operators)
    model = load_onnx(path, Limits(), size=tuple(map(int, case.size.split("x"))) if case.size else None)
    example = example_input(model, side=SIDE)
    largest, gap = difference(model, path, example)
    sheet.note(parameters=count(model), inputs=[list(x.shape) for x in example])
    sheet.note(largest_output=short(largest), difference=short(gap))
    traced = trace(model, example)
    pins = Counter(space.pins[0].reason for space in traced.spaces if space.pins)
    sheet.note(spaces=len(traced.spaces), free=len(traced.free), pins=dict(sorted(pins.items())))
    result = recover(model, example)
    found = {
        space.name: {**space.counts, "dead": dead_channels(model, traced, space.name)}
        for space in result.report.spaces
        if space.counts
    }
    sheet.note(removed=result.report.removed, merged=result.report.merged, found=found)
    if (other := by_onnx2torch(path, example)) is not None:
        sheet.note(onnx2torch=other)
    same = gap <= SAME * largest + ROUNDING
    changed = "changed" if result.report.changed else "unchanged"
    return {"attacked": after_attack(result.model, example), "result": changed if same else "outputs differ"}


def after_attack(model: nn.Module, example: tuple[Tensor, ...]) -> dict[str, Any]:
    """A network without dead channels, attacked and recovered: what was added, what is left of it, the certificate."""
    try:
        hidden = attack(model, example, "mix-opseq", ratio=RATIO, seed=0).model
        found = recover(hidden, example).model
        given = certify(found, model, example)
    except CanonError as error:
        return {"reason": error.message}
    return {"added": count(hidden) - count(model), "left": count(found) - count(model), "certified": given.passed}


def difference(model: nn.Module, path: Path, example: tuple[Tensor, ...]) -> tuple[float, float]:
    """The largest output of onnxruntime, and the largest difference from it."""
    expected = run_file(path, *example)
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


def by_onnx2torch(path: Path, example: tuple[Tensor, ...]) -> str | None:
    """What the converter onnx2torch makes of a file, and how many spaces can be followed in it; None without it."""
    import_torchvision()  # which it imports, and which needs some help with a torch for the CPU
    try:
        from onnx2torch import convert
    except ModuleNotFoundError:
        return None
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
