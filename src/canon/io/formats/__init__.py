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

_PACKED: Final = ("a packed file", "Unpack it, and give the model in it")
_PAGE: Final = ("a web page", "Fetch the model itself, not the page about it")
_OTHERS: Final[dict[bytes, tuple[str, str]]] = {
    b"version https://git-lfs": ("a pointer of Git LFS, not the model", "Fetch the model itself with 'git lfs pull'"),
    b"\x1f\x8b": _PACKED, b"BZh": _PACKED, b"\xfd7zXZ\0": _PACKED, b"7z\xbc\xaf": _PACKED, b"(\xb5/\xfd": _PACKED,
    b"\x89HDF\r\n": ("an HDF5 file", "Export the model as ONNX from the program that made it"),
    b"<!": _PAGE, b"<html": _PAGE,
    b"GGUF": ("a GGUF file", "Give the folder that it was converted from, with its config.json"),
}  # fmt: skip
"""What else people take for models, by its first bytes, and what to do with it."""

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
    return next(format for format in formats() if path.suffix.lower() in format.written)


def file_kind(path: Path, limits: Limits) -> FileKind:
    """Find out what a file is."""
    where = str(path)
    size = path.stat().st_size
    if not size:
        raise FileFormatError("the file is empty", where=where, hint="Fetch it again, or save it again")
    limits.check_file(size, where)
    with open(path, "rb") as file:
        peek = Peek(path, file, file.read(32), limits)
        for format in formats():
            file.seek(0)
            kind = format.sniff(peek)
            if kind is not None:
                return kind
    for start, (what, hint) in _OTHERS.items():
        if peek.start.startswith(start):
            raise FileFormatError(f"the file is {what}", where=where, hint=hint)
    hint = f"Canon reads {', '.join(suffixes())}. If it is one of these, it is damaged"
    raise FileFormatError("the file is of no format that Canon reads", where=where, hint=hint)


__all__ = [
    "FORMATS", "FileKind", "Format", "Graph", "Peek", "Source", "Writing", "add", "file_kind", "format_to_write",
    "formats", "suffixes", "writable",
]  # fmt: skip
