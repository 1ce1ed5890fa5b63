"""Model files: read from strangers, written whole."""

from __future__ import annotations

from canon._untrusted import Limits
from canon.io.architecture import is_factory
from canon.io.formats import FileKind, Format, file_kind
from canon.io.loading import LoadedModel, digest, load, read_model, read_weights
from canon.io.saving import check_format, save

__all__ = [
    "FileKind", "Format", "Limits", "LoadedModel", "check_format", "digest", "file_kind",
    "is_factory", "load", "read_model", "read_weights", "save",
]  # fmt: skip
