"""Models as ONNX graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from canon.io.examples import DEFAULT_INPUT, check_input
from canon.io.formats.interface import FileKind, Format, Graph, Peek, Source, Writing


class Onnx(Format):
    """A protocol buffer, with numbers in it or in files beside it."""

    name = "ONNX"
    endings = written = (".onnx",)
    holds_graph = True

    def sniff(self, peek: Peek) -> FileKind | None:
        """By its name: nothing in its first bytes tells it from others."""
        return FileKind(self) if peek.path.suffix == ".onnx" else None

    def read(self, source: Source) -> Graph:
        """See `Format`."""
        from canon.io.onnx import example_input, load_onnx
        from canon.io.onnx.model import settled_shapes

        model: Any = load_onnx(source.path, source.limits, size=source.size)
        side = source.size[-1] if source.size else DEFAULT_INPUT[-1]
        for shape in settled_shapes([entry[-1] for entry in model.meta["inputs"]], side, side):
            check_input(shape, source.where)
        return Graph(model, example_input(model, side=side), model.meta["notes"], model.meta["precision"])

    def write(self, model: nn.Module, place: Path, writing: Writing) -> None:
        """See `Format`."""
        from canon.io.onnx import save_onnx

        save_onnx(model, writing.inputs, place)
