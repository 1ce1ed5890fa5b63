"""Write the weights of a folder tensor by tensor, in files of one size with an index."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from canon._safetensors import DTYPE_NAMES

METADATA: Final = {"format": "pt"}

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type of every tensor by name, in the order in which they are written."""


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """What a writer needs to know of tensors that it will be given."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


class ShardWriter:
    """Takes tensors one after the other, in the order of `shapes`; each file holds at most so many bytes.

    A tensor that is larger gets a file of its own. A file has its name when it is whole; those that are there already
    are left as they are, and what belongs into them is passed over.
    """

    def __init__(self, folder: Path, stem: str, shapes: Shapes, most: int, *, indexed: bool = True) -> None:
        self._folder, self._shapes = folder, shapes
        groups = [*_groups(shapes, most)]
        one = len(groups) == 1 and not indexed
        self._files = {
            f"{stem}.safetensors" if one else f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors": names
            for number, names in enumerate(groups, 1)
        }
        self._index = None if one else folder / f"{stem}.safetensors.index.json"
        self._waiting = iter(self._files.items())
        self._left: list[str] = []
        self._open: BinaryIO | None = None
        self._path = folder
        self.finished = tuple(
            file
            for file, names in self._files.items()
            if _is_whole(folder / file, {name: shapes[name] for name in names})
        )

    def __enter__(self) -> ShardWriter:
        return self

    def add(self, name: str, tensor: Tensor) -> None:
        """Write one tensor."""
        if not self._left:
            self._close(whole=True)
            file, names = next(self._waiting)
            self._left = [*reversed(names)]
            self._path = self._folder / file
            if file not in self.finished:
                self._open = open(self._part, "wb")  # noqa: SIM115 - closed by _close
                self._open.write(_header({one: self._shapes[one] for one in names}))
        assert self._left.pop() == name, "tensors come in the order that was promised"
        if self._open is not None:
            raw: Any = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            self._open.write(raw)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(whole=kind is None)
        if kind is None:
            for other in {path.name for path in self._folder.glob("*.safetensors*")} - self._files.keys():
                (self._folder / other).unlink()  # of a work that was cut otherwise
        if kind is None and self._index is not None:
            weight_map = {name: file for file, names in self._files.items() for name in names}
            total = sum(map(_size, self._shapes.values()))
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            self._index.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _close(self, *, whole: bool) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
            if whole:
                os.replace(self._part, self._path)

    @property
    def _part(self) -> Path:
        """What a file is called until it is whole."""
        return self._path.with_name(f"{self._path.name}.part")


def _size(entry: tuple[tuple[int, ...], torch.dtype]) -> int:
    return math.prod(entry[0]) * entry[1].itemsize


def _header(shapes: Shapes) -> bytes:
    """What stands before the numbers of a safetensors file."""
    entries: dict[str, Any] = {"__metadata__": METADATA}
    end = 0
    for name, (shape, dtype) in shapes.items():
        begin, end = end, end + _size((shape, dtype))
        entries[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    room = -(-len(text) // 8) * 8
    return room.to_bytes(8, "little") + text.ljust(room)


def _is_whole(path: Path, shapes: Shapes) -> bool:
    """Whether a file is as long as one with these tensors, and says that it holds them."""
    start = _header(shapes)
    if not path.is_file() or path.stat().st_size != len(start) + sum(map(_size, shapes.values())):
        return False
    with open(path, "rb") as file:
        return file.read(len(start)) == start


def _groups(shapes: Shapes, most: int) -> Iterator[list[str]]:
    found: list[str] = []
    size = 0
    for name, entry in shapes.items():
        if found and size + _size(entry) > most:
            yield found
            found, size = [], 0
        found.append(name)
        size += _size(entry)
    yield found
