"""Write the weights of a folder tensor by tensor, in files of one size with an index."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from torch import Tensor

from canon.io.tensor_writer import TensorWriter

METADATA: Final = {"format": "pt"}


class ShardWriter:
    """Takes tensors one after the other; a file is closed when the next tensor would make it too large.

    How many files there will be is known last, and is part of their names, so they get their names at the end.
    """

    def __init__(self, folder: Path, stem: str, names: list[str], most: int, *, indexed: bool = True) -> None:
        self._folder, self._stem, self._names, self._most, self._indexed = folder, stem, names, most, indexed
        self._parts: list[list[str]] = []
        self._open: TensorWriter | None = None
        self._size = self._total = 0

    def __enter__(self) -> ShardWriter:
        return self

    def add(self, name: str, tensor: Tensor) -> None:
        """Write one tensor."""
        size = tensor.numel() * tensor.element_size()
        if self._open is None or (self._parts[-1] and self._size + size > self._most):
            self._close(None, None, None)
            self._parts.append([])
            self._open = TensorWriter(self._part(len(self._parts)), self._names, METADATA)
            self._size = 0
        self._open.add(name, tensor)
        self._parts[-1].append(name)
        self._size += size
        self._total += size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(kind, error, trace)
        if kind is not None:
            return
        if len(self._parts) == 1 and not self._indexed:
            self._part(1).rename(self._folder / f"{self._stem}.safetensors")
            return
        weight_map: dict[str, str] = {}
        for number, names in enumerate(self._parts, 1):
            final = f"{self._stem}-{number:05d}-of-{len(self._parts):05d}.safetensors"
            self._part(number).rename(self._folder / final)
            weight_map.update(dict.fromkeys(names, final))
        index: dict[str, Any] = {"metadata": {"total_size": self._total}, "weight_map": weight_map}
        path = self._folder / f"{self._stem}.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _close(self, kind: Any, error: Any, trace: Any) -> None:
        if self._open is not None:
            self._open.__exit__(kind, error, trace)
            self._open = None

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number:05d}.safetensors"
