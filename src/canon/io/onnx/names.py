"""Names from a file, made safe: they become attributes of modules and parts of generated code."""

from __future__ import annotations

import keyword
import re
from typing import Final

from torch import fx

_RESERVED: Final = frozenset(dir(fx.GraphModule)) | frozenset(keyword.kwlist) | {"training", "meta", "self"}
_DEPTH: Final = 24
_LENGTH: Final = 80


def safe_name(text: str) -> str:
    """A name made of letters, digits and underscores, that neither Python nor a module uses for itself.

    >>> safe_name("onnx::Conv_193"), safe_name("forward"), safe_name("")
    ('onnx__Conv_193', 'forward_', 'value')
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", text[:_LENGTH]) or "value"
    return f"{name}_" if name in _RESERVED or name.startswith("__") else name


def safe_path(text: str) -> str:
    """A dotted path whose parts are safe.

    >>> safe_path("layer1.0.conv1"), safe_path("/layer1/conv1/Conv"), safe_path("a..b")
    ('layer1.0.conv1', 'layer1.conv1.Conv', 'a.b')
    """
    parts = [safe_name(part) for part in re.split(r"[./]", text) if part]
    return ".".join(parts[-_DEPTH:]) or "value"


class Names:
    """Paths that are taken, so that every tensor and layer gets one of its own."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._folders: set[str] = set()
        self._numbers: dict[str, int] = {}

    def free(self, path: str) -> str:
        """The path itself, or a variant of it that nothing has."""
        base = path
        while self._collides(path):
            self._numbers[base] = self._numbers.get(base, 1) + 1
            path = f"{base.replace('.', '_')}_{self._numbers[base]}"
        self._taken.add(path)
        parts = path.split(".")
        self._folders.update(".".join(parts[:end]) for end in range(1, len(parts)))
        return path

    def _collides(self, path: str) -> bool:
        parts = path.split(".")
        above = (".".join(parts[:end]) for end in range(1, len(parts)))
        return path in self._taken or path in self._folders or any(folder in self._taken for folder in above)
