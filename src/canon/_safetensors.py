"""Read safetensors files from anybody.

A file is a length, a header of JSON, and numbers. Everything that the header says is checked before memory is taken for
it: it may be cut off, lie about sizes, or name the same bytes twice. Nothing in such a file can run code.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from canon._untrusted import damaged, natural, parse_json
from canon.errors import FileFormatError, KeyFileError, LimitError, MissingExtraError

HEADER_BYTES: Final = 16 << 20
"""Most bytes of a header."""

_DTYPES: Final[dict[str, torch.dtype]] = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "F16": torch.float16, "BF16": torch.bfloat16,
    "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
DTYPE_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
"""What a header calls a dtype."""

_MOST_DIMENSIONS: Final = 64


@dataclass(frozen=True)
class Entry:
    """What a header says about one tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """First byte in the file."""

    size: int
    """Number of bytes."""


@dataclass(frozen=True)
class Header:
    """A checked header: every entry lies in the file, and no two share a byte."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]


def read_header(file: BufferedReader, where: str, most: int = HEADER_BYTES) -> Header:
    """Read and check the header of an open safetensors file.

    Raises:
        LimitError: The header is longer than `most` bytes.
        FileFormatError: Whatever else is wrong with it.
    """
    total = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if total < 8 or length > total - 8:
        raise damaged(f"a header of {length} bytes in a file of {total}", where)
    if length > most:
        raise LimitError(f"{length} bytes of header, and at most {most} are allowed", where=where)
    document = parse_json(file.read(length), where)
    if not isinstance(document, dict):
        raise damaged("the header is no JSON object", where)
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged("the metadata is no table of texts", where)
    entries = {name: _entry(name, value, 8 + length, where) for name, value in document.items()}
    end = 8 + length
    for entry in sorted(entries.values(), key=lambda e: (e.start, e.size)):
        if entry.start != end:
            raise damaged("tensors overlap or leave gaps", where)
        end += entry.size
    if end != total:
        raise damaged(f"the tensors end at byte {end}, the file at {total}", where)
    return Header(entries, metadata)


def read_entry(file: BufferedReader, entry: Entry, where: str) -> Tensor:
    """One tensor of an open file, in memory of its own."""
    return read_numbers(file, entry.start, entry.size, entry.dtype, where).view(entry.shape)


def read_numbers(file: BufferedReader, start: int, size: int, dtype: torch.dtype, where: str) -> Tensor:
    """The numbers that lie in a file at a place that the caller has checked."""
    flat = torch.empty(size, dtype=torch.uint8)
    file.seek(start)
    buffer: Any = flat.numpy()
    if size and file.readinto(buffer) != size:
        raise damaged("the file ends too early", where)
    return flat.view(dtype)


def read_key(
    path: str | Path, kind: str, version: int, what: str, writer: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a key file: safetensors with one JSON text in its metadata.

    Args:
        path: The file.
        kind: The format that the header must name.
        version: The newest version of it that the caller can read.
        what: What such a file is called, for errors.
        writer: What writes such files, for errors.

    Raises:
        KeyFileError: Whatever is wrong with the file.
    """
    where = str(path)
    if not Path(path).is_file():
        raise KeyFileError("no such key file", where=where)
    try:
        with open(path, "rb") as file:
            header = read_header(file, where)
            document = _key_document(header.metadata, kind, version, what, writer, where)
            return document, {name: read_entry(file, entry, where) for name, entry in header.entries.items()}
    except (FileFormatError, OSError) as error:
        reason = error.message if isinstance(error, FileFormatError) else str(error)
        raise KeyFileError(
            f"the key file is damaged or is no safetensors file: {reason}",
            where=where,
            hint="Fetch it again from where it was saved",
        ) from error


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata; tensors that share memory are written once each."""
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("safetensors", "io") from error
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    safetensors.torch.save_file(plain, str(path), metadata=dict(metadata))


def _entry(name: str, value: Any, base: int, where: str) -> Entry:
    try:
        dtype, shape, (start, stop) = _DTYPES[value["dtype"]], value["shape"], value["data_offsets"]
        if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
            raise ValueError("not a shape")
        sizes = tuple(natural(n) for n in shape)
        start, stop = natural(start), natural(stop)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(f"the entry of tensor '{name:.80}' is not understood: {error}", where) from error
    size = math.prod(sizes) * dtype.itemsize
    if start > stop or size != stop - start:
        raise damaged(f"the entry of tensor '{name:.80}' contradicts itself", where)
    return Entry(dtype, sizes, base + start, size)


def _key_document(
    metadata: Mapping[str, str], kind: str, version: int, what: str, writer: str, where: str
) -> dict[str, Any]:
    try:
        header = parse_json(metadata["canon"].encode(), where)
        found, number = header["format"], natural(header["version"])
    except (KeyError, TypeError, ValueError, FileFormatError) as error:
        raise KeyFileError(f"the file is not a {what}", where=where, hint=f"They are written by {writer}") from error
    if found != kind:
        raise KeyFileError(f"the file is a '{found!s:.40}', not a {what}", where=where)
    if number > version:
        raise KeyFileError(
            f"the key has format version {number}; this Canon reads up to {version}", where=where, hint="Upgrade Canon"
        )
    assert isinstance(header, dict), "a JSON object was indexed by name"
    return header
