"""How much a file from a stranger may ask for.

Everything here is checked from headers and directories, before memory is taken for what they promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from canon.errors import LimitError


@final
@dataclass(frozen=True)
class Limits:
    """The most that a model file may hold. The defaults leave room for any public vision network."""

    file_bytes: int = 16 << 30
    """Size of all the files of one model together, also after unpacking."""

    header_bytes: int = 16 << 20
    """Size of a header, index, directory or graph: what is parsed rather than mapped into memory."""

    tensors: int = 50_000
    """Number of tensors."""

    tensor_bytes: int = 4 << 30
    """Size of one tensor."""

    dimensions: int = 8
    """Number of dimensions of one tensor."""

    def check_file(self, size: int, where: str) -> None:
        """Raise `LimitError` if a file is larger than allowed."""
        _check(size, self.file_bytes, "bytes", "file_bytes", where)

    def check_header(self, size: int, where: str) -> None:
        """Raise `LimitError` if a header is larger than allowed."""
        _check(size, self.header_bytes, "bytes of header", "header_bytes", where)

    def check_count(self, count: int, where: str) -> None:
        """Raise `LimitError` if there are more tensors than allowed."""
        _check(count, self.tensors, "tensors", "tensors", where)

    def check_shape(self, shape: Sequence[int], element_bytes: int, where: str) -> int:
        """The number of elements of a shape; raise `LimitError` if it has too many, or too many dimensions.

        >>> Limits().check_shape((64, 3, 7, 7), 4, "conv1.weight")
        9408
        >>> Limits().check_shape((1 << 40, 1 << 40), 4, "conv1.weight")
        Traceback (most recent call last):
        ...
        canon.errors.LimitError: 4835703278458516698824704 bytes in a tensor, and at most 4294967296 are allowed
        (at conv1.weight). If you trust the file, allow more with --limit tensor_bytes=NUMBER
        """
        _check(len(shape), self.dimensions, "dimensions", "dimensions", where)
        count = 1
        for size in shape:
            count *= size
        _check(count * element_bytes, self.tensor_bytes, "bytes in a tensor", "tensor_bytes", where)
        return count


def _check(found: int, most: int, what: str, name: str, where: str) -> None:
    if found > most:
        raise LimitError(
            f"{found} {what}, and at most {most} are allowed",
            where=where,
            hint=f"If you trust the file, allow more with --limit {name}=NUMBER",
        )
