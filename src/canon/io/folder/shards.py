"""Which tensors a folder holds, in which files: known from headers alone, and mapped into memory when asked for."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from canon._safetensors import Entry
from canon._untrusted import Limits, damaged, parse_json, reported
from canon.errors import FileFormatError
from canon.graph.mapped import note
from canon.graph.tensors import StoredTensors
from canon.io.origin import FileState, file_state
from canon.io.weights import INDEX_SUFFIX, beside, checked_header


@dataclass(frozen=True, eq=False)
class Shards:
    """The weight files of a folder."""

    entries: Mapping[str, tuple[Path, Entry]]
    """By tensor: its file and its place there."""

    states: Mapping[Path, FileState]
    """Every file as it was when its header was read."""

    index: Path | None
    """None: one file, which needs no index."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The weight files, in order."""
        return tuple(dict.fromkeys(path for path, _ in self.entries.values()))

    @property
    def largest(self) -> int:
        """Bytes of numbers in the largest file."""
        sizes: dict[Path, int] = {}
        for path, entry in self.entries.values():
            sizes[path] = sizes.get(path, 0) + entry.size
        return max(sizes.values(), default=0)


def find_shards(folder: Path, limits: Limits) -> Shards:
    """The weight files of a folder, with their headers read and checked against the index.

    Raises:
        FileFormatError: A file is missing or damaged, or the index says something else than the files.
    """
    where = str(folder)
    found = [one for one in folder.iterdir() if one.is_file()]
    indices = sorted(one for one in found if one.name.endswith(".safetensors" + INDEX_SUFFIX))
    files = sorted(one for one in found if one.suffix == ".safetensors")
    if len(indices) > 1:
        raise FileFormatError(
            "the folder holds weights twice", where=where, hint=f"Keep {indices[0].name} or the other"
        )
    if indices:
        return _indexed(indices[0], limits)
    if len(files) == 1:
        return Shards(*_headers(files, limits), None)
    if files:
        raise FileFormatError(
            f"the folder holds {len(files)} weight files and no index of them",
            where=where,
            hint="Fetch the missing model.safetensors.index.json",
        )
    pickled = [one.name for one in found if one.suffix in (".bin", ".pt", ".pth", ".ckpt")]
    if pickled:
        raise FileFormatError(
            f"the folder holds its weights as a pickle ({pickled[0]:.80}), and as no safetensors file",
            where=where,
            hint="Convert it: load it with transformers and call save_pretrained(..., safe_serialization=True)",
        )
    raise FileFormatError("the folder holds no weights", where=where, hint="Fetch the safetensors files of the model")


def _indexed(index: Path, limits: Limits) -> Shards:
    where = str(index)
    limits.check_header(index.stat().st_size, where)
    state = file_state(index)
    document = parse_json(index.read_bytes(), where)
    with reported(where):
        wanted = {str(name): beside(shard, where) for name, shard in document["weight_map"].items()}
    limits.check_count(len(wanted), where)
    if not wanted:
        raise damaged("the index lists no tensor", where)
    files = [index.parent / name for name in dict.fromkeys(wanted.values())]
    for path in files:
        if not path.is_file():
            raise FileFormatError(
                f"the part '{path.name}' is missing", where=where, hint="Put all parts into one folder"
            )
    entries, states = _headers(files, limits)
    held = {name: path.name for name, (path, _) in entries.items()}
    if held != wanted:
        name = min(name for name in held.keys() | wanted.keys() if held.get(name) != wanted.get(name))
        raise damaged(f"the index and the parts disagree about the tensor '{name:.120}'", where)
    _check_total(document, sum(entry.size for _, entry in entries.values()), where)
    return Shards(entries, {index: state, **states}, index)


def _check_total(document: Any, held: int, where: str) -> None:
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is not None and (isinstance(total, bool) or total != held):
        raise damaged(f"the index says that there are {total!r:.40} bytes of numbers, and there are {held}", where)


def _headers(files: list[Path], limits: Limits) -> tuple[dict[str, tuple[Path, Entry]], dict[Path, FileState]]:
    entries: dict[str, tuple[Path, Entry]] = {}
    states: dict[Path, FileState] = {}
    total = 0
    for path in files:
        with open(path, "rb") as file:
            states[path] = file_state(file.fileno())
            total += states[path][2]
            limits.check_file(total, str(path.parent))
            header = checked_header(file, str(path), limits)
        for name, entry in header.entries.items():
            if name in entries:
                raise damaged(f"the tensor '{name:.120}' stands in two files", str(path))
            entries[name] = (path, entry)
    limits.check_count(len(entries), str(files[0].parent))
    return entries, states


class MappedTensors(StoredTensors):
    """The tensors of weight files, mapped into memory: pages are read when numbers are, and belong to the file.

    Whoever writes to such a tensor changes a copy of the page, never the file.
    """

    def __init__(self, shards: Shards) -> None:
        self._entries = shards.entries
        self._maps: dict[Path, mmap.mmap] = {}
        for path in shards.files:
            with open(path, "rb") as file:
                if file_state(file.fileno()) != shards.states[path]:
                    raise FileFormatError("the file was changed while it was read", where=str(path))
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            note(self._maps[path])

    def __getitem__(self, name: str) -> Tensor:
        path, entry = self._entries[name]
        if not entry.size:
            return torch.empty(entry.shape, dtype=entry.dtype)
        pages = self._maps[path]
        if entry.start % entry.dtype.itemsize:  # torch reads whole words only
            return torch.frombuffer(bytearray(pages[entry.start : entry.start + entry.size]), dtype=entry.dtype).view(
                entry.shape
            )
        count = entry.size // entry.dtype.itemsize
        return torch.frombuffer(pages, dtype=entry.dtype, count=count, offset=entry.start).view(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> torch.Size:
        """A tensor's shape, without reading it."""
        return torch.Size(self._entries[name][1].shape)
