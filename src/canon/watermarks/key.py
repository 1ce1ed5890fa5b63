"""The owner's secret, and the file it is kept in.

A key file is a safetensors file: tensors, plus one JSON text in its header. Nothing in it can run
code when it is read. The version is checked before anything else, so that an older Canon says "newer
format" and not something puzzling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from canon.errors import KeyFileError, MissingExtraError
from canon.watermarks.message import Message

FORMAT: Final = "canon-watermark-key"
VERSION: Final = 1

Setting = str | int | float | bool | list[str] | list[int] | dict[str, str]
"""What a scheme may note in its key besides tensors: plain JSON values."""


@dataclass(frozen=True, eq=False)
class Key:
    """Everything a scheme needs to read its message, and nothing of the model."""

    scheme: str
    """Name of the scheme that made it."""
    architecture: str
    """Fingerprint of the model's layer names, which no obfuscation changes."""
    shapes: Mapping[str, tuple[int, ...]]
    """Watermark-bearing Conv and Linear layers, and the shape each weight had when it was marked."""
    message: Message
    """What was embedded."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """The scheme's own notes."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """The scheme's secrets: projections, passports, networks, samples."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the watermark-bearing layers."""
        return tuple(self.shapes)

    def save(self, path: str | Path) -> None:
        """Write the key file; `load_key` reads it."""
        save_file = _safetensors("safetensors.torch").save_file
        header = {
            "format": FORMAT,
            "version": VERSION,
            "scheme": self.scheme,
            "architecture": self.architecture,
            "shapes": [[layer, *shape] for layer, shape in self.shapes.items()],
            "bits": "".join(map(str, self.message.bits)),
            "settings": dict(self.settings),
        }
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.tensors.items()}
        save_file(tensors, str(path), metadata={"canon": json.dumps(header, sort_keys=True)})


def load_key(path: str | Path) -> Key:
    """Read a key file written by `Key.save`."""
    where = str(path)
    if not Path(path).is_file():
        raise KeyFileError("no such key file", where=where)
    safetensors = _safetensors("safetensors")
    try:
        with safetensors.safe_open(where, framework="pt") as file:
            metadata = file.metadata() or {}
            header = _header(metadata, where)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise KeyFileError(
            f"the key file is damaged or is no safetensors file: {error}",
            where=where,
            hint="Fetch it again from where it was saved.",
        ) from error
    try:
        return Key(
            scheme=str(header["scheme"]),
            architecture=str(header["architecture"]),
            shapes={layer: tuple(map(int, shape)) for layer, *shape in header["shapes"]},
            message=Message.of(int(bit) for bit in header["bits"]),
            settings=header["settings"],
            tensors=tensors,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise KeyFileError(f"the key file's header is incomplete: {error}", where=where) from error


def _header(metadata: Mapping[str, str], where: str) -> dict[str, Any]:
    try:
        header = json.loads(metadata["canon"])
        kind, version = header["format"], int(header["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise KeyFileError(
            "the file is not a watermark key",
            where=where,
            hint="Keys are written by `canon watermark embed` or Key.save.",
        ) from error
    if kind != FORMAT:
        raise KeyFileError(f"the file is a '{kind}', not a watermark key", where=where)
    if version > VERSION:
        raise KeyFileError(
            f"the key has format version {version}; this Canon reads up to {VERSION}",
            where=where,
            hint="Upgrade Canon.",
        )
    assert isinstance(header, dict), "a JSON object was indexed by name"
    return header


def _safetensors(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError("safetensors", "io") from error
