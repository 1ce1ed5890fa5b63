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
from typing import Final

from torch import Tensor

from canon._safetensors import read_key, write_safetensors
from canon.errors import KeyFileError, WatermarkError
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
        header = {
            "format": FORMAT,
            "version": VERSION,
            "scheme": self.scheme,
            "architecture": self.architecture,
            "shapes": [[layer, *shape] for layer, shape in self.shapes.items()],
            "bits": "".join(map(str, self.message.bits)),
            "settings": dict(self.settings),
        }
        write_safetensors(Path(path), self.tensors, {"canon": json.dumps(header, sort_keys=True)})


def load_key(path: str | Path) -> Key:
    """Read a key file written by `Key.save`. It may come from anybody: whatever is wrong with it is a KeyFileError."""
    header, tensors = read_key(path, FORMAT, VERSION, "watermark key", "`canon watermark embed` or Key.save")
    try:
        return Key(
            scheme=str(header["scheme"]),
            architecture=str(header["architecture"]),
            shapes={str(layer): tuple(map(int, shape)) for layer, *shape in header["shapes"]},
            message=Message.of(int(bit) for bit in header["bits"]),
            settings=dict(header["settings"]),
            tensors=tensors,
        )
    except (KeyError, TypeError, ValueError, WatermarkError) as error:
        raise KeyFileError(f"the key file's header is incomplete: {error}", where=str(path)) from error
