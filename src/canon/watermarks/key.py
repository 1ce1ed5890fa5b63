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

from canon._safetensors import read_key, write_safetensors
from canon._shown import Shown
from canon.errors import KeyFileError, WatermarkError
from canon.watermarks.message import Message
from canon.watermarks.schema import MOST_BITS, check_plain

FORMAT: Final = "canon-watermark-key"
VERSION: Final = 1

Setting = str | int | float | bool | list[str] | list[int] | dict[str, str]
"""What a scheme may note in its key besides tensors: plain JSON values."""


@dataclass(frozen=True, eq=False, repr=False)
class Key(Shown):
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

    def _shown(self) -> Mapping[str, object]:
        return {"scheme": self.scheme, "bits": len(self.message), "layers": list(self.layers)}

    def __post_init__(self) -> None:
        check_key(self)

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


def check_key(key: Key) -> None:
    """Raise a KeyFileError unless a key holds what its scheme writes; of an unknown scheme, unless it is plain data."""
    from canon.watermarks.registry import known  # schemes import keys

    check_plain(key)
    scheme = known(key.scheme)
    if scheme is not None:
        scheme.check_key(key)


def load_key(path: str | Path) -> Key:
    """Read a key file written by `Key.save`. It may come from anybody: whatever is wrong with it is a KeyFileError."""
    header, tensors = read_key(path, FORMAT, VERSION, "watermark key", "`canon watermark embed` or Key.save")
    try:
        return Key(
            scheme=header["scheme"],
            architecture=header["architecture"],
            shapes=_shapes(header["shapes"]),
            message=_message(header["bits"]),
            settings=header["settings"],
            tensors=tensors,
        )
    except KeyFileError as error:
        raise KeyFileError(error.message, where=str(path), hint=error.hint) from error
    except (KeyError, TypeError, ValueError, WatermarkError) as error:
        raise KeyFileError(f"the key file's header is incomplete: {error!s:.200}", where=str(path)) from error


def _shapes(rows: list[list[Any]]) -> dict[str, tuple[int, ...]]:
    shapes = {layer: tuple(sizes) for layer, *sizes in rows}
    if len(shapes) != len(rows):
        raise ValueError("a layer is named twice")
    return shapes


def _message(digits: Any) -> Message:
    if not isinstance(digits, str) or set(digits) - {"0", "1"} or len(digits) > MOST_BITS:
        raise ValueError("the message must be a text of zeros and ones")
    return Message.of(map(int, digits))
