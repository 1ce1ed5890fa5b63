"""The wire format of protocol buffers, read in bounded time and without a copy of what is large.

A generated parser builds an object for every two bytes of a hostile file. Here fields are counted while they are
read, and strings of bytes are views of the mapped file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from canon.errors import FileFormatError, LimitError

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

DAMAGED: Final = "It is no ONNX file, or only a part of one; fetch it again from where it was saved"

MOST_FIELDS: Final = 3_000_000
"""Fields of one file; the largest public networks have some hundred thousand."""

MOST_PACKED: Final = 64 << 20
"""Bytes of one list of varints."""

_PIECE: Final = 1 << 20

Scalar = int | memoryview


@dataclass
class Meter:
    """Counts the fields of one file."""

    fields: int = 0

    def count(self, number: int = 1) -> None:
        """Raise `LimitError` once there are too many."""
        self.fields += number
        if self.fields > MOST_FIELDS:
            raise LimitError(f"the file holds more than {MOST_FIELDS} fields", hint="It is damaged or hostile")


def fields(view: memoryview, meter: Meter) -> Iterator[tuple[int, int, Scalar]]:
    """The fields of a message in file order: number, wire type, and a number or a view.

    >>> [(n, t, v if isinstance(v, int) else bytes(v)) for n, t, v in fields(memoryview(b"\\x08\\x96\\x01"), Meter())]
    [(1, 0, 150)]
    """
    position, end = 0, len(view)
    while position < end:
        meter.count()
        key, position = _varint(view, position, end)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise FileFormatError("a field has the number zero", hint=DAMAGED)
        if kind == VARINT:
            value, position = _varint(view, position, end)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, position = _varint(view, position, end)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise FileFormatError(f"a field has the unknown wire type {kind}", hint=DAMAGED)
        if length > end - position:
            raise FileFormatError("a field is longer than the message that holds it", hint=DAMAGED)
        yield number, kind, view[position : position + length]
        position += length


def _varint(view: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end:
        byte = view[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
        if shift > 63:
            break
    raise FileFormatError("a number is cut off or longer than 64 bits", hint=DAMAGED)


def signed(value: int) -> int:
    """A varint as the signed 64-bit number that it stands for."""
    return value - (1 << 64) if value >> 63 else value


def real(view: memoryview) -> float:
    """A 32-bit floating point number."""
    return float(struct.unpack("<f", view)[0])


def packed_integers(view: memoryview) -> np.ndarray:
    """Many varints side by side, as signed 64-bit numbers.

    >>> packed_integers(memoryview(b"\\x03\\x96\\x01")).tolist()
    [3, 150]
    """
    if len(view) > MOST_PACKED:
        raise LimitError(f"a list of numbers takes more than {MOST_PACKED} bytes", hint="Store it as raw data")
    data = np.frombuffer(view, np.uint8)
    pieces = []
    start = 0
    while start < data.size:
        piece = data[start : start + _PIECE]
        last = np.flatnonzero(piece < 128)
        if not last.size:
            raise FileFormatError("a list of numbers is cut off", hint=DAMAGED)
        pieces.append(_integers(piece, last))
        start += int(last[-1]) + 1
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _integers(data: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The numbers whose last bytes stand at these places."""
    first = np.concatenate([[0], last[:-1] + 1])
    lengths = last - first + 1
    longest = int(lengths.max())
    if longest > 10:
        raise FileFormatError("a number is longer than 64 bits", hint=DAMAGED)
    result = np.zeros(last.size, np.uint64)
    for byte in range(longest):
        there = lengths > byte
        digits = data[first[there] + byte].astype(np.uint64) & np.uint64(127)
        result[there] |= digits << np.uint64(7 * byte)
    return result.view(np.int64)
