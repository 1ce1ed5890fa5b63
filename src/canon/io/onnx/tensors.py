"""From a tensor of the file to a tensor of torch; also where its bytes are in a file of their own.

Such a file must lie in the folder of the model: nothing that a model says makes Canon open another one. A tensor is
allocated only after its bytes were found to be there.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from canon._untrusted import Limits
from canon.errors import FileFormatError
from canon.io.onnx.model import StoredTensor
from canon.io.origin import FileState, file_state

DTYPES: Final[dict[int, torch.dtype]] = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 4: torch.uint16, 5: torch.int16, 6: torch.int32, 7: torch.int64,
    9: torch.bool, 10: torch.float16, 11: torch.float64, 12: torch.uint32, 13: torch.uint64, 16: torch.bfloat16,
}  # fmt: skip
"""Element types by their number in ONNX."""

_FIELDS: Final[dict[torch.dtype, str]] = {
    torch.float32: "float_data", torch.float64: "double_data", torch.int64: "int64_data",
    torch.uint32: "uint64_data", torch.uint64: "uint64_data",
}  # fmt: skip
"""Where numbers of a type stand when they are not stored as bytes; all others stand in `int32_data`."""

SLACK: Final = 16 << 20
"""Bytes that small tensors may take beyond what the files hold."""


def dtype_of(number: int, where: str) -> torch.dtype:
    """The element type of this number."""
    if number not in DTYPES:
        raise FileFormatError(f"element type {number} is not supported", where=where, hint="Dequantize the model")
    return DTYPES[number]


class TensorReader:
    """Reads the tensors of one model."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.folder, self.limits = path.parent, limits
        self.available = path.stat().st_size
        self.taken = 0
        self.files: dict[str, memoryview] = {}
        self.states: dict[Path, FileState] = {}
        """Files of external data, as they were read."""

    def read(self, stored: StoredTensor) -> Tensor:
        """A tensor of its own, of the shape and type that the file gives it."""
        where = stored.name[:80]
        dtype = dtype_of(stored.dtype, where)
        count = self.limits.check_shape(stored.shape, dtype.itemsize, where)
        size = count * dtype.itemsize
        if stored.external:
            data: Any = self._outside(stored, size, where)
        elif stored.raw is not None:
            data = stored.raw
        else:
            data = _typed(stored, dtype, where)
        held = data.nbytes
        if held != size:
            raise FileFormatError(f"the tensor of shape {stored.shape} needs {size} bytes and has {held}", where=where)
        self._take(size, where)
        if not count:
            return torch.empty(stored.shape, dtype=dtype)
        # A copy: the file is mapped read-only, and must not be needed any longer.
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(stored.shape)

    def _take(self, size: int, where: str) -> None:
        self.taken += size
        if self.taken > self.available + SLACK:
            raise FileFormatError("the tensors take more bytes than the files hold: they overlap", where=where)

    def _outside(self, stored: StoredTensor, size: int, where: str) -> memoryview:
        location = stored.external["location"]
        try:
            offset = int(stored.external.get("offset", "0")[:20])
            length = int(stored.external.get("length", str(size))[:20])
        except ValueError as error:
            raise FileFormatError("offset or length of external data is no number", where=where) from error
        if location not in self.files:
            self.files[location] = self._open(location, where)
        view = self.files[location]
        if offset < 0 or length < 0 or offset + length > len(view):
            raise FileFormatError("external data ends before the tensor does", where=where, hint="Fetch it again")
        return view[offset : offset + length]

    def _open(self, location: str, where: str) -> memoryview:
        """A file of external data, if it is a plain file inside the model's folder."""
        inside = os.path.realpath(self.folder)
        try:
            target = os.path.realpath(os.path.join(inside, location)) if location else ""
            hostile = not target.startswith(os.path.join(inside, "")) or ".." in Path(location).parts
            if hostile or os.path.isabs(location):
                raise FileFormatError(
                    f"external data at '{location[:200]}' lies outside the model's folder",
                    where=where,
                    hint="It is not opened. Only load this model if you know why it asks for that file",
                )
            if not os.path.isfile(target):
                raise FileFormatError(f"the file of external data '{location[:200]}' does not exist", where=where)
            size = os.path.getsize(target)
            self.available += size
            self.limits.check_file(self.available, str(location[:200]))
            with open(target, "rb") as file:
                self.states[self.folder / location] = file_state(file.fileno())
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else memoryview(b"")
        except (OSError, ValueError) as error:
            raise FileFormatError(f"external data cannot be read: {error}", where=where) from error


def _typed(stored: StoredTensor, dtype: torch.dtype, where: str) -> np.ndarray:
    """The numbers of a tensor that are stored as such, as their bytes would be."""
    name = _FIELDS.get(dtype, "int32_data")
    if any(other != name for other in stored.typed):
        raise FileFormatError(f"the tensor's numbers stand in a field of another type than {dtype}", where=where)
    data = stored.typed.get(name, np.empty(0, np.int64))
    if dtype in (torch.float32, torch.float64):
        kind = np.dtype("<f4") if dtype == torch.float32 else np.dtype("<f8")
        return np.ascontiguousarray(data, kind)
    kind = np.dtype(f"<u{dtype.itemsize}")
    numbers = data != 0 if dtype == torch.bool else data.view(np.uint64)
    return np.ascontiguousarray(numbers, kind)
