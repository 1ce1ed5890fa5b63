"""Zip archives from anybody, as torch writes them: nothing compressed, nothing encrypted, nothing that overlaps.

The directory is checked as a whole before anything is read, so a record takes as many bytes in memory as in the file.
Records are read in place; nothing is ever unpacked to disk.
"""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BufferedReader
from typing import Final, final

import torch
from torch import Tensor

from canon._safetensors import read_numbers
from canon._untrusted import Limits, damaged
from canon.errors import FileFormatError

MAGIC: Final = b"PK\x03\x04"
_LOCAL, _CENTRAL, _END = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s4H2LH")
_LOCATOR, _END64 = struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_ENCRYPTED: Final = 0x2041


@dataclass(frozen=True)
class Member:
    """Where one file of an archive lies."""

    start: int
    """Its first byte in the archive."""

    size: int
    crc: int
    compressed: bool = False
    """Whether it is code, which torch compresses and Canon never reads."""


@final
class Archive:
    """The files of a checked archive, by name without the archive's own top folder."""

    def __init__(self, file: BufferedReader, where: str, limits: Limits) -> None:
        self.file, self.where, self.limits = file, where, limits
        self.records: Mapping[str, Member] = _records(file, where, limits)

    def check_byteorder(self) -> None:
        """Refuse numbers that a big-endian machine wrote."""
        if "byteorder" in self.records and self.read("byteorder") != b"little":
            raise FileFormatError("the file was written on a big-endian machine", where=self.where)

    def read(self, name: str) -> bytes:
        """The bytes of a record that will be parsed."""
        record = self._record(name)
        self.limits.check_header(record.size, f"{self.where}: {name}")
        self.file.seek(record.start)
        data = self.file.read(record.size)
        self._check(data, record, name)
        return data

    def numbers(self, name: str, dtype: torch.dtype) -> Tensor:
        """The numbers of a record that holds nothing else, flat."""
        record = self._record(name)
        self.limits.check_shape((record.size,), 1, f"{self.where}: {name}")
        if record.size % dtype.itemsize:
            raise damaged(f"the record '{name}' ends within a number", self.where)
        flat = read_numbers(self.file, record.start, record.size, torch.uint8, self.where)
        self._check(flat.numpy().data, record, name)
        return flat.view(dtype)

    def _record(self, name: str) -> Member:
        if name not in self.records:
            raise damaged(f"the archive lacks '{name:.120}'", self.where)
        if self.records[name].compressed:
            raise _compressed(name, self.where)
        return self.records[name]

    def _check(self, data: bytes | memoryview, record: Member, name: str) -> None:
        if len(data) != record.size or zlib.crc32(data) != record.crc:
            raise damaged(f"the checksum of '{name}' is wrong", self.where)


def _records(file: BufferedReader, where: str, limits: Limits) -> dict[str, Member]:
    try:
        found = _directory(file, where, limits)
    except struct.error as error:
        raise damaged("the archive is cut off", where) from error
    if "serialized_exported_program.json" in found:
        raise FileFormatError(
            "the program was saved by torch 2.7 or older",
            where=where,
            hint="Export and save it again with a newer torch",
        )
    roots = {name.partition("/")[0] for name in found}
    if len(roots) != 1 or any("/" not in name for name in found):
        raise FileFormatError(
            "the archive was not written by torch: it has no top folder, or several",
            where=where,
            hint="If a model is in it, unpack it and give that",
        )
    (root,) = roots
    return {name.removeprefix(f"{root}/"): record for name, record in found.items()}


def _directory(file: BufferedReader, where: str, limits: Limits) -> dict[str, Member]:
    total = file.seek(0, os.SEEK_END)
    limits.check_file(total, where)
    count, size, start, end = _end(file, total, where)
    limits.check_header(size, where)
    limits.check_count(count, where)
    if start + size != end:
        raise damaged("the directory is not where the archive says", where)
    file.seek(start)
    data = file.read(size)
    found: dict[str, Member] = {}
    spans = []
    position = 0
    for _ in range(count):
        name, offset, record, position = _entry(data, position, where)
        if name in found:
            raise damaged(f"'{name:.120}' stands twice in the archive", where)
        begin = _begin(file, name, offset, start, where)
        if begin + record.size > start:
            raise damaged(f"'{name:.120}' runs into the directory", where)
        found[name] = replace(record, start=begin)
        spans.append((offset, begin + record.size))
    if position != size:
        raise damaged("the directory has more than the archive counts", where)
    spans.sort()
    if any(last > first for (_, last), (first, _) in itertools.pairwise(spans)):
        raise damaged("records of the archive overlap", where)
    return found


def _end(file: BufferedReader, total: int, where: str) -> tuple[int, int, int, int]:
    """Number of records, size and start of the directory, and where it must end."""
    position = total - _END.size
    magic, disk, first, here, count, size, start, comment = _END.unpack(_at(file, position, _END.size))
    if magic != b"PK\5\6" or comment or disk or first or here != count:
        raise damaged("no archive, cut off, or in several parts", where)
    if count != _FULL16 and _FULL32 not in (size, start):
        if position >= _LOCATOR.size and _at(file, position - _LOCATOR.size, 4) == b"PK\6\7":
            return _end64(file, position, where)
        return count, size, start, position
    return _end64(file, position, where)


def _end64(file: BufferedReader, position: int, where: str) -> tuple[int, int, int, int]:
    locator, _, offset, _ = _LOCATOR.unpack(_at(file, position - _LOCATOR.size, _LOCATOR.size))
    fields = _END64.unpack(_at(file, offset, _END64.size))
    magic, here, count, size, start = fields[0], *fields[6:]
    if locator != b"PK\6\7" or magic != b"PK\6\6" or here != count or offset + _END64.size > position:
        raise damaged("the end of the archive is not understood", where)
    return count, size, start, offset


def _entry(data: bytes, position: int, where: str) -> tuple[str, int, Member, int]:
    fields = _CENTRAL.unpack_from(data, position)
    magic, _, _, flags, method, _, _, crc, packed, size, name_size, extra_size, comment, disk, _, _, offset = fields
    if magic != b"PK\1\2" or disk not in (0, _FULL16):
        raise damaged("the directory of the archive is not understood", where)
    begin = position + _CENTRAL.size
    raw, extra = data[begin : begin + name_size], data[begin + name_size : begin + name_size + extra_size]
    name = _safe(raw, where)
    if _FULL32 in (packed, size, offset):
        size, packed, offset = _wide(extra, size, packed, offset)
    if flags & _ENCRYPTED:
        raise FileFormatError(f"the archive is encrypted at '{name}'", where=where)
    code = "code" in name.split("/")[1:-1]
    if (method != 0 or packed != size) and not code:
        raise _compressed(name, where)
    return name, offset, Member(0, packed, crc, method != 0), begin + name_size + extra_size + comment


def _compressed(name: str, where: str) -> FileFormatError:
    return FileFormatError(
        f"the archive is compressed at '{name}'",
        where=where,
        hint="torch does not compress its numbers, and a small file could unpack into a huge one. "
        "If you trust it, load it with torch and save it again",
    )


def _wide(extra: bytes, *fields: int) -> list[int]:
    """Sizes and offsets of more than 32 bits stand in an extra field, in this order."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        position += 4
        if kind == 1:
            missing = sum(field == _FULL32 for field in fields)
            values = iter(struct.unpack_from(f"<{missing}Q", extra, position))
            return [next(values) if field == _FULL32 else field for field in fields]
        position += length
    raise struct.error("no field for large sizes")


def _begin(file: BufferedReader, name: str, offset: int, end: int, where: str) -> int:
    """First byte of a record's data, after its own header, which must name the same record."""
    if offset + _LOCAL.size > end:
        raise damaged(f"'{name:.120}' begins behind the directory", where)
    fields = _LOCAL.unpack(_at(file, offset, _LOCAL.size))
    name_size, extra_size = fields[-2:]
    if fields[0] != MAGIC or file.read(name_size) != name.encode():
        raise damaged(f"'{name:.120}' is not where the directory says", where)
    return int(offset + _LOCAL.size + name_size + extra_size)


def _at(file: BufferedReader, position: int, size: int) -> bytes:
    if not 0 <= position <= os.fstat(file.fileno()).st_size:
        raise struct.error("no place in the file")
    file.seek(position)
    return file.read(size)


def _safe(raw: bytes, where: str) -> str:
    """A record's name, if it can only mean a place inside the archive."""
    name = raw.decode("utf-8", "replace")
    parts = name.split("/")
    bad = {"", ".", ".."} & set(parts) or "\\" in name or "\0" in name or ":" in name or "\ufffd" in name
    if bad or not name.isprintable():
        raise FileFormatError(f"the archive holds a file with the unsafe name {name!r:.120}", where=where)
    return name
