"""What all readers of files from strangers share: JSON, names, damage, and how much a file may ask for.

Everything is checked from headers and directories, before memory is taken for what they promise; a parser that meets
nonsense ends in one error about the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

from canon.errors import FileFormatError, LimitError

LARGEST: Final = 1 << 62
"""Of whole numbers."""

LONGEST_NAME: Final = 1000
"""Letters of a name."""


def parse_json(data: bytes, where: str) -> Any:
    """JSON from a stranger: no name twice in one object, no numbers that are not finite."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise damaged(f"it holds no valid JSON: {str(error) or 'nested too deep'}", where) from error


def damaged(reason: str, where: str) -> FileFormatError:
    """What is wrong with a file."""
    return FileFormatError(
        f"the file is damaged or was not what its name says: {reason}",
        where=where,
        hint="Fetch it again from where it was saved",
    )


@contextmanager
def reported(where: str) -> Iterator[None]:
    """Errors of a parser that meets nonsense become one error about the file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise damaged(f"{type(error).__name__}: {error}", where) from error


def natural(value: Any) -> int:
    """A whole number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise ValueError(f"expected a whole number, got {value!r:.40}")
    return value


def is_identifier(value: object) -> bool:
    """Whether something can stand as a name in Python code, in plain letters.

    >>> is_identifier("conv1"), is_identifier("conv1.weight"), is_identifier("ｃonv"), is_identifier(3)
    (True, False, False, False)
    """
    return isinstance(value, str) and value.isascii() and value.isidentifier() and len(value) <= LONGEST_NAME


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is not finite")
    return value


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


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
