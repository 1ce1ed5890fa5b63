"""Models as ONNX graphs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from torch import nn

from canon.io.examples import DEFAULT_INPUT, check_input
from canon.io.formats.interface import FileKind, Format, Graph, Peek, Source, Writing

_START: Final = re.compile(rb"\x08[\x03-\x1f][\x12\x1a\x22\x2a\x32\x3a\x42]")


class Onnx(Format):
    """A protocol buffer, with numbers in it or in files beside it."""

    name = "ONNX"
    endings = written = (".onnx",)
    holds_graph = True

    def sniff(self, peek: Peek) -> FileKind | None:
        """By its name, or by a version of the format and a field of the model behind it."""
        return FileKind(self) if peek.path.suffix.lower() == ".onnx" or _START.match(peek.start) else None

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
