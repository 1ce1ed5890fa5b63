"""Recover a checkpoint that is larger than memory: read, recovered and written tensor by tensor."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon._files import atomic_path
from canon._safetensors import Entry, read_entry
from canon._untrusted import Limits, damaged, parse_json, reported
from canon.errors import FileFormatError
from canon.graph.tensors import StoredTensors
from canon.io.tensor_writer import TensorWriter
from canon.io.weights import INDEX_SUFFIX, checked_header
from canon.recovery import RecoveryReport
from canon.recovery.streaming import recover_tensors

_LARGE: Final = 1 << 18
"""Bytes from which on a tensor gets pages of its own."""


class FileTensors(StoredTensors):
    """The tensors of a safetensors file, or of several with an index, read when they are asked for."""

    def __init__(self, path: str | Path, limits: Limits | None = None) -> None:
        limits, source = limits or Limits(), Path(path)
        self._entries: dict[str, tuple[Path, Entry]] = {}
        for part in _parts(source):
            if not part.is_file():
                raise FileFormatError(f"the part '{part.name}' is missing", where=str(source))
            with open(part, "rb") as file:
                header = checked_header(file, str(part), limits)
            self._entries.update({name: (part, entry) for name, entry in header.entries.items()})

    def __getitem__(self, name: str) -> Tensor:
        part, entry = self._entries[name]
        with open(part, "rb") as file:
            return read_entry(file, entry, str(part)) if entry.size < _LARGE else _read_apart(file, entry, str(part))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> torch.Size:
        """A tensor's shape, without reading it."""
        return torch.Size(self._entries[name][1].shape)


def _read_apart(file: BufferedReader, entry: Entry, where: str) -> Tensor:
    """A large tensor in pages of its own, which go back to the system with it.

    In the heap, small things that are kept would settle where large ones were, and no other large one would fit there.
    """
    pages = mmap.mmap(-1, entry.size)
    file.seek(entry.start)
    if file.readinto(pages) != entry.size:
        raise damaged("the file ends too early", where)
    return torch.frombuffer(pages, dtype=entry.dtype).view(entry.shape)


def _parts(source: Path) -> list[Path]:
    if not source.name.endswith(INDEX_SUFFIX):
        return [source]
    document = parse_json(source.read_bytes(), str(source))
    with reported(str(source)):
        names = [str(part) for part in dict.fromkeys(document["weight_map"].values())]
    if any(Path(name).name != name for name in names):
        raise FileFormatError("the index names a part outside its folder", where=str(source))
    return [source.parent / name for name in names]


def recover_file(
    source: str | Path,
    target: str | Path,
    skeleton: nn.Module,
    example: Tensor | tuple[Any, ...],
    *,
    widths: nn.Module | Mapping[str, Tensor] | None = None,
    force: bool = False,
) -> RecoveryReport:
    """Undo structural obfuscation of a checkpoint in safetensors files, whatever its size.

    Args:
        source: A safetensors file, or the index of several.
        target: The file to write.
        skeleton: The suspect's modules in evaluation mode, built with its widths on the meta device.
        example: An input tensor or tuple of inputs.
        widths: A model or state dict whose layer widths are the clean ones, if they are known.
        force: Replace a file that exists.
    """
    tensors = FileTensors(source)
    with atomic_path(target, force=force) as place, TensorWriter(place, list(tensors)) as writer:
        return recover_tensors(skeleton, example, tensors, writer.add, widths=widths)
