"""Tensors by name, from safetensors files: one, or several with an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from itertools import groupby
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from canon._safetensors import Entry, Header, read_entry, read_header
from canon._untrusted import Limits, damaged, parse_json, reported
from canon.errors import FileFormatError
from canon.io.origin import FileState, file_state

INDEX_SUFFIX: Final = ".index.json"


@dataclass(frozen=True, eq=False)
class Shards:
    """The files that weights lie in."""

    entries: Mapping[str, tuple[Path, Entry]]
    """By tensor: its file and its place there."""

    states: Mapping[Path, FileState]
    """Every file as it was when its header was read."""

    index: Path | None
    """None: one file, which needs no index."""

    said: object = None
    """Bytes of numbers that there are, as the index says."""

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


def read_safetensors(file: BufferedReader, where: str, limits: Limits) -> dict[str, Tensor]:
    """The tensors of an open file."""
    header = checked_header(file, where, limits)
    return {name: read_entry(file, entry, where) for name, entry in header.entries.items()}


def checked_header(file: BufferedReader, where: str, limits: Limits) -> Header:
    """The header of an open file, if the limits allow what it lists."""
    header = read_header(file, where, limits.header_bytes)
    limits.check_count(len(header.entries), where)
    for name, entry in header.entries.items():
        limits.check_shape(entry.shape, entry.dtype.itemsize, f"{where}: {name:.120}")
    return header


def indexed(index: Path, limits: Limits) -> Shards:
    """The files that an index lists, all of them beside it, with their headers read and held against it."""
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
    entries, states = headers(files, limits)
    held = {name: path.name for name, (path, _) in entries.items()}
    if held != wanted:
        name = min(name for name in held.keys() | wanted.keys() if held.get(name) != wanted.get(name))
        raise damaged(f"the index and the parts disagree about the tensor '{name:.120}'", where)
    metadata = document.get("metadata")
    said = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Shards(entries, {index: state, **states}, index, said)


def headers(files: list[Path], limits: Limits) -> tuple[dict[str, tuple[Path, Entry]], dict[Path, FileState]]:
    """By tensor its file and its place there; and every file as it was."""
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


def read_sharded(path: Path, limits: Limits, states: dict[Path, FileState]) -> dict[str, Tensor]:
    """The tensors that an index lists, from the files beside it; `states` notes these files as they were read."""
    shards = indexed(path, limits)
    states.update(shards.states)
    found: dict[str, Tensor] = {}
    for part, held in groupby(shards.entries.items(), key=lambda item: item[1][0]):
        with open(part, "rb") as file:
            found |= {name: read_entry(file, entry, str(part)) for name, (_, entry) in held}
    return found


def check_finite(state: dict[str, Tensor], where: str) -> None:
    """Refuse weights that are not numbers: nothing can be said about what they compute."""
    for name, tensor in state.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        wide = tensor.float() if tensor.dtype.itemsize == 1 else tensor
        low, high = torch.aminmax(wide)
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise FileFormatError(
                f"the tensor '{name:.120}' holds numbers that are not finite",
                where=where,
                hint="A model with such weights computes nothing; look for another copy of the file",
            )


def one_type(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Weights in one float type, the widest, and a note where a file mixes them or stores them in one byte each."""
    kinds = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    if len(kinds) < 2 and all(kind.itemsize > 1 for kind in kinds):
        return state, ()
    wide = torch.float64 if torch.float64 in kinds else torch.float32
    names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    read = {name: tensor.to(wide) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    return read, (f"the file holds {names}; all is read as {str(wide).removeprefix('torch.')}",)


def beside(shard: object, where: str) -> str:
    """The name of a file in the folder of the index, and nowhere else."""
    if not isinstance(shard, str) or not shard.endswith(".safetensors") or Path(shard).name != shard or "\\" in shard:
        raise FileFormatError(
            f"the index names the part {shard!r:.120}, which is no safetensors file beside it",
            where=where,
            hint="Save the parts as safetensors, all in one folder",
        )
    return shard
