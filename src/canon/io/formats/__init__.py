"""The formats of model files, in one table. A new one is a file beside this one and a line in `FORMATS`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from canon._untrusted import Limits
from canon.errors import FileFormatError
from canon.io.formats.interface import FileKind, Format, Graph, Peek, Source, Writing
from canon.io.formats.onnx import Onnx
from canon.io.formats.program import ExportedProgram
from canon.io.formats.safetensors import Safetensors, SafetensorsInParts
from canon.io.formats.state import OldStateDict, StateDict

POINTER: Final = b"version https://git-lfs"
"""What stands in a file in the place of one that Git LFS has not fetched."""

FORMATS: Final[tuple[Format, ...]] = (
    SafetensorsInParts(),
    Safetensors(),
    StateDict(),
    ExportedProgram(),
    Onnx(),
    OldStateDict(),
)
"""In the order in which files are shown to them."""

_ADDED: Final[dict[str, Format]] = {}
"""Formats of this process alone."""


def add(format: Format) -> Format:
    """Make a format known to this process, as a notebook or test needs it; it is asked after those of the table."""
    _ADDED[format.name] = format
    return format


def formats() -> tuple[Format, ...]:
    """Every format that there is."""
    return (*FORMATS, *_ADDED.values())


def suffixes() -> tuple[str, ...]:
    """Endings of the files that can be read."""
    return tuple(dict.fromkeys(ending for format in formats() for ending in format.endings))


def writable() -> tuple[str, ...]:
    """Endings of the files that can be written."""
    return tuple(dict.fromkeys(ending for format in formats() for ending in format.written))


def format_to_write(path: Path) -> Format:
    """The format of a file that is to be written; ask `writable` first."""
    return next(format for format in formats() if path.suffix in format.written)


def file_kind(path: Path, limits: Limits) -> FileKind:
    """Find out what a file is."""
    where = str(path)
    size = path.stat().st_size
    if not size:
        raise FileFormatError("the file is empty", where=where, hint="Fetch it again, or save it again")
    limits.check_file(size, where)
    with open(path, "rb") as file:
        if file.read(len(POINTER)) == POINTER:
            hint = "Fetch the model itself with 'git lfs pull'"
            raise FileFormatError("the file is a pointer of Git LFS, not the model", where=where, hint=hint)
        file.seek(0)
        peek = Peek(path, file, file.read(16), limits)
        for format in formats():
            file.seek(0)
            kind = format.sniff(peek)
            if kind is not None:
                return kind
    raise FileFormatError(
        "the file is of no format that Canon reads",
        where=where,
        hint=f"Canon reads {', '.join(suffixes())}; ONNX is known by its ending alone. If it is one, it is damaged",
    )


__all__ = [
    "FORMATS", "FileKind", "Format", "Graph", "Peek", "Source", "Writing", "add", "file_kind", "format_to_write",
    "formats", "suffixes", "writable",
]  # fmt: skip
