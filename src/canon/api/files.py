"""Models and keys that are given as files: read here, with their names and digests for the evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from canon.graph import plain
from canon.verify import LayoutKey

if TYPE_CHECKING:
    from canon.watermarks import Key

Inputs = Mapping[str, Mapping[str, str]]
"""By role: the name and digest of a file."""

Value = TypeVar("Value")


class Files:
    """Reads what was given as a path, and remembers which files these were."""

    def __init__(self, named: Inputs | None) -> None:
        self.named: dict[str, Mapping[str, str]] = dict(named or {})
        self.architecture: str | None = None
        """What the first file's weights belong to; those of the others are taken for the same."""

    def model(self, role: str, given: nn.Module | str | Path) -> nn.Module:
        """A model."""
        if not isinstance(given, str | Path):
            return plain(given)
        from canon.io import read_model

        loaded = read_model(given, self.architecture if Path(given).is_file() else None)
        self.architecture = self.architecture or loaded.architecture
        self.named.setdefault(role, loaded.origin)
        return loaded.model

    def layout_key(self, given: LayoutKey | str | Path) -> LayoutKey:
        """A layout key."""
        return self._key("layout_key", given, LayoutKey.load) if isinstance(given, str | Path) else given

    def watermark_key(self, given: Key | str | Path) -> Key:
        """A watermark key."""
        if not isinstance(given, str | Path):
            return given
        from canon.watermarks import load_key

        return self._key("watermark_key", given, load_key)

    def _key(self, role: str, path: str | Path, load: Callable[[Path], Value]) -> Value:
        from canon.io.origin import read_with_origin

        key, origin = read_with_origin(Path(path), load)
        self.named.setdefault(role, origin)
        return key
