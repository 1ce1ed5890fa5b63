"""Models as `torch.export` programs."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from canon.io.examples import program_example
from canon.io.formats.interface import FileKind, Format, Graph, Peek, Source, Writing
from canon.io.program import is_program, load_program, save_program


class ExportedProgram(Format):
    """An archive of JSON and numbers."""

    name = "torch.export program"
    endings = written = (".pt2",)
    holds_graph = True
    is_pickle = True

    def sniff(self, peek: Peek) -> FileKind | None:
        """By what is in the archive."""
        return FileKind(self) if peek.archive is not None and is_program(peek.archive) else None

    def read(self, source: Source) -> Graph:
        """See `Format`."""
        with open(source.path, "rb") as file:
            model = load_program(file, source.where, source.limits)
        return Graph(model, program_example(model, source.size, source.where))

    def write(self, model: nn.Module, place: Path, writing: Writing) -> None:
        """See `Format`."""
        save_program(model, writing.inputs, place)
