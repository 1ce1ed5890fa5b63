"""Write a safetensors file whose tensors come one after the other."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch
from torch import Tensor

from canon._safetensors import DTYPE_NAMES

_ROOM_PER_TENSOR: Final = 256
"""Bytes of header kept free for one tensor besides its name."""


class TensorWriter:
    """Writes a safetensors file whose tensors come one after the other.

    Where only their names are known before, more room is kept for the header than it takes; it is written last.
    """

    def __init__(
        self,
        path: Path,
        names: Collection[str] | Mapping[str, tuple[tuple[int, ...], torch.dtype]],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        spare = len(json.dumps(self._header).encode()) + sum(len(name.encode()) for name in names)
        room = spare + _ROOM_PER_TENSOR * (len(names) + 1)
        if isinstance(names, Mapping):
            room = len(_text({**self._header, **_entries(names)}))
        self._room = -(-room // 8) * 8
        self._end = 0
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._file.seek(8 + self._room)

    def __enter__(self) -> TensorWriter:
        return self

    def add(self, name: str, tensor: Tensor) -> None:
        """Write one tensor."""
        data = tensor.detach().cpu().contiguous()
        begin, self._end = self._end, self._end + data.numel() * data.element_size()
        self._header[name] = {
            "dtype": DTYPE_NAMES[data.dtype], "shape": list(data.shape), "data_offsets": [begin, self._end],
        }  # fmt: skip
        raw: Any = data.view(-1).view(torch.uint8).numpy()
        self._file.write(raw)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file as file:
            if kind is None:
                text = _text(self._header)
                assert len(text) <= self._room, "room for the header is reckoned from the names"
                file.seek(0)
                file.write(self._room.to_bytes(8, "little") + text.ljust(self._room))


def is_whole(
    path: Path, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]], metadata: Mapping[str, str]
) -> bool:
    """Whether a file is as long as one with these tensors, and says that it holds them."""
    entries = _entries(shapes)
    text = _text({"__metadata__": dict(metadata), **entries})
    room = -(-len(text) // 8) * 8
    end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    start = room.to_bytes(8, "little") + text.ljust(room)
    if not path.is_file() or path.stat().st_size != len(start) + end:
        return False
    with open(path, "rb") as file:
        return file.read(len(start)) == start


def _text(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode()


def _entries(shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, Any]:
    """What a header will say of tensors of these shapes."""
    found, end = {}, 0
    for name, (shape, dtype) in shapes.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        found[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    return found
