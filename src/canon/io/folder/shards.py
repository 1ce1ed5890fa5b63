"""Which tensors a folder holds, in which files: known from headers alone, and mapped into memory when asked for."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from canon._untrusted import Limits, damaged
from canon.errors import FileFormatError
from canon.graph.mapped import note
from canon.graph.tensors import StoredTensors
from canon.graph.widening import LAYER_BY_LAYER
from canon.io.origin import file_state
from canon.io.weights import INDEX_SUFFIX, Shards, headers, indexed


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
        shards = indexed(indices[0], limits)
        _check_total(shards, str(indices[0]))
        return shards
    if len(files) == 1:
        return Shards(*headers(files, limits), None)
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


def _check_total(shards: Shards, where: str) -> None:
    said, held = shards.said, sum(entry.size for _, entry in shards.entries.values())
    if said is not None and (isinstance(said, bool) or said != held):
        raise damaged(f"the index says that there are {said!r:.40} bytes of numbers, and there are {held}", where)


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
        if sum(map(len, self._maps.values())) >= LAYER_BY_LAYER:  # of small models, results are made in memory
            for pages in self._maps.values():
                note(pages)

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
