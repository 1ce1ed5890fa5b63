"""Tensors by name, from safetensors files: one, or several with an index."""

from __future__ import annotations

import os
from io import BufferedReader
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from canon._safetensors import Header, read_entry, read_header
from canon._untrusted import Limits, damaged, parse_json, reported
from canon.errors import FileFormatError
from canon.io.origin import FileState, file_state

INDEX_SUFFIX: Final = ".index.json"


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


def read_sharded(path: Path, limits: Limits, states: dict[Path, FileState] | None = None) -> dict[str, Tensor]:
    """The tensors that an index lists, from the files beside it; `states` notes these files as they were read."""
    where = str(path)
    limits.check_header(path.stat().st_size, where)
    document = parse_json(path.read_bytes(), where)
    with reported(where):
        wanted = {str(name): beside(shard, where) for name, shard in document["weight_map"].items()}
    limits.check_count(len(wanted), where)
    found: dict[str, Tensor] = {}
    total = 0
    for shard in dict.fromkeys(wanted.values()):
        if not (path.parent / shard).is_file():
            raise FileFormatError(f"the part '{shard}' is missing", where=where, hint="Put all parts into one folder")
        with open(path.parent / shard, "rb") as file:
            if states is not None:
                states[path.parent / shard] = file_state(file.fileno())
            total += file.seek(0, os.SEEK_END)
            limits.check_file(total, where)
            header = checked_header(file, f"{where}: {shard}", limits)
            listed = {name for name, part in wanted.items() if part == shard}
            if listed != set(header.entries):
                name = min(listed ^ set(header.entries))
                raise damaged(f"index and part '{shard}' disagree about the tensor '{name:.120}'", where)
            found.update({name: read_entry(file, entry, where) for name, entry in header.entries.items()})
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


def beside(shard: object, where: str) -> str:
    """The name of a file in the folder of the index, and nowhere else."""
    if not isinstance(shard, str) or not shard.endswith(".safetensors") or Path(shard).name != shard or "\\" in shard:
        raise FileFormatError(
            f"the index names the part {shard!r:.120}, which is no safetensors file beside it", where=where
        )
    return shard
