"""Weights in safetensors files: one, or several with an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from torch import nn

from canon._safetensors import write_safetensors
from canon._untrusted import parse_json
from canon._version import __version__
from canon.errors import FileFormatError
from canon.io.architecture import is_factory
from canon.io.formats.interface import FileKind, Format, Peek, Source, Writing
from canon.io.states import Checkpoint
from canon.io.weights import INDEX_SUFFIX, checked_header, read_safetensors, read_sharded

METADATA: Final = "canon"
"""Where a safetensors file that Canon wrote says what it is."""

_KEYS: Final = {"canon-layout-key": "layout key", "canon-watermark-key": "watermark key"}


class Safetensors(Format):
    """One file. Canon's keys are such files too, and are recognised here."""

    name = "safetensors"
    endings = written = (".safetensors",)

    def sniff(self, peek: Peek) -> FileKind | None:
        """By the header of JSON that follows the length."""
        if peek.path.suffix.lower() == ".onnx" or peek.start[8:9] != b"{":
            return None
        note = _note(checked_header(peek.file, peek.where, peek.limits).metadata)
        return FileKind(self, _architecture(note), _KEYS.get(str(note.get("format"))[:40]))

    def read(self, source: Source) -> Checkpoint:
        """See `Format`."""
        with open(source.path, "rb") as file:
            return Checkpoint(read_safetensors(file, source.where, source.limits))

    def write(self, model: nn.Module, place: Path, writing: Writing) -> None:
        """See `Format`. A factory is the user's own business and is not written down."""
        note: dict[str, Any] = {"format": "canon-model", "version": 1, "canon": __version__}
        if writing.architecture is not None and not is_factory(writing.architecture):
            note["architecture"] = writing.architecture
        write_safetensors(place, model.state_dict(), {METADATA: json.dumps(note), "format": "pt"})


class SafetensorsInParts(Format):
    """Several files beside an index."""

    name = "safetensors in parts"
    endings = (INDEX_SUFFIX,)

    def sniff(self, peek: Peek) -> FileKind | None:
        """By its name."""
        return FileKind(self) if peek.path.name.endswith(INDEX_SUFFIX) else None

    def read(self, source: Source) -> Checkpoint:
        """See `Format`."""
        return Checkpoint(read_sharded(source.path, source.limits, source.states))


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
