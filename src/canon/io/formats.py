"""What a file is: known by its first bytes, since anybody can choose a name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from canon._safetensors import parse_json
from canon.errors import FileFormatError
from canon.io.architecture import is_factory
from canon.io.archive import MAGIC, Archive
from canon.io.limits import Limits
from canon.io.program import is_program
from canon.io.weights import INDEX_SUFFIX, checked_header

METADATA: Final = "canon"
"""Where a safetensors file that Canon wrote says what it is."""

SUFFIXES: Final = (".safetensors", INDEX_SUFFIX, ".pt", ".pth", ".bin", ".pt2", ".onnx")
"""Endings of the files that can be read."""

_KEYS: Final = {"canon-layout-key": "layout key", "canon-watermark-key": "watermark key"}


class Format(Enum):
    """A format, in words."""

    SAFETENSORS = "safetensors"
    PARTS = "safetensors in parts"
    STATE = "state dict of torch"
    OLD_STATE = "state dict of an old torch"
    PROGRAM = "torch.export program"
    ONNX = "ONNX"

    @property
    def holds_graph(self) -> bool:
        """Whether such a file holds the forward pass itself, and not weights alone."""
        return self in (Format.PROGRAM, Format.ONNX)

    @property
    def is_pickle(self) -> bool:
        """Whether torch would unpickle it."""
        return self in (Format.STATE, Format.OLD_STATE, Format.PROGRAM)


@dataclass(frozen=True)
class FileKind:
    """What is known about a file before its numbers are read."""

    format: Format
    architecture: str | None = None
    """A public architecture that the file names. A hint, and nothing else: no file may name code."""

    key: str | None = None
    """What kind of key it is; None for a model."""


def file_kind(path: Path, limits: Limits) -> FileKind:
    """Find out what a file is."""
    where = str(path)
    size = path.stat().st_size
    if not size:
        raise FileFormatError("the file is empty", where=where, hint="Fetch it again, or save it again")
    limits.check_file(size, where)
    if path.name.endswith(INDEX_SUFFIX):
        return FileKind(Format.PARTS)
    with open(path, "rb") as file:
        start = file.read(16)
        if start.startswith(MAGIC):
            program = is_program(Archive(file, where, limits))
            return FileKind(Format.PROGRAM if program else Format.STATE)
        if path.suffix != ".onnx" and start[8:9] == b"{":
            note = _note(checked_header(file, where, limits).metadata)
            return FileKind(Format.SAFETENSORS, _architecture(note), _KEYS.get(str(note.get("format"))[:40]))
    if path.suffix == ".onnx":  # nothing in its first bytes tells it from others
        return FileKind(Format.ONNX)
    if start.startswith(b"\x80"):
        return FileKind(Format.OLD_STATE)
    raise FileFormatError(
        "the file is of no format that Canon reads",
        where=where,
        hint=f"Canon reads {', '.join(SUFFIXES)}; ONNX is known by its ending alone. If it is one, it is damaged",
    )


def _note(metadata: Any) -> dict[str, Any]:
    try:
        note = parse_json(metadata[METADATA].encode(), "metadata")
    except (KeyError, FileFormatError):
        return {}
    return note if isinstance(note, dict) else {}


def _architecture(note: dict[str, Any]) -> str | None:
    name = note.get("architecture")
    public = note.get("format") == "canon-model" and isinstance(name, str) and len(name) < 200 and not is_factory(name)
    return name if public else None
