"""What an ONNX file holds, as data: nothing here reads and nothing computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from canon.errors import FileFormatError


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor as the file describes it; nothing is allocated for it."""

    name: str
    dtype: int
    """Number of the element type."""

    shape: tuple[int, ...]
    raw: memoryview | None
    """The bytes, if they stand in the file as such."""

    typed: Mapping[str, np.ndarray]
    """Lists of numbers, by the name of the field that holds them."""

    external: Mapping[str, str]
    """Where another file holds the bytes: location, offset, length."""


@dataclass(frozen=True, eq=False)
class Node:
    """One operation of the graph."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    """Empty names stand for operands that are left out."""

    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Numbers, strings, lists of them, or a `StoredTensor`."""

    has_graph: bool = False
    """Whether an attribute is itself a graph: control flow."""

    branches: Mapping[str, Branch] = field(default_factory=dict)
    """The two graphs of an `If`."""

    @property
    def where(self) -> str:
        """What an error calls this node."""
        return f"{self.op} '{(self.name or ', '.join(self.outputs))[:80]}'"

    def integer(self, name: str, default: int) -> int:
        """An attribute that is a whole number."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else self._wrong(name)

    def real(self, name: str, default: float) -> float:
        """An attribute that is a number."""
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, (int, float)) else self._wrong(name)

    def text(self, name: str, default: str) -> str:
        """An attribute that is a string."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, str) else self._wrong(name)

    def integers(self, name: str) -> list[int] | None:
        """An attribute that is a list of whole numbers; None where it is left out."""
        value = self.attributes.get(name)
        if value is None or (isinstance(value, list) and all(type(v) is int for v in value)):
            return value
        return self._wrong(name)

    def _wrong(self, name: str) -> NoReturn:
        raise FileFormatError(f"the attribute '{name}' is of the wrong type", where=self.where)


@dataclass(frozen=True, eq=False)
class Branch:
    """A graph inside a node. It sees the values around it."""

    nodes: tuple[Node, ...]
    tensors: tuple[StoredTensor, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Port:
    """An input or output of the model."""

    name: str
    dtype: int
    shape: tuple[int | str | None, ...] | None
    """Numbers where sizes are fixed, names where they are open, None where nothing is said."""


@dataclass(frozen=True, eq=False)
class Model:
    """A file's graph."""

    nodes: tuple[Node, ...]
    tensors: tuple[StoredTensor, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    opset: int
    producer: str


Shape = tuple[int | str | None, ...]


def settled_shapes(shapes: Sequence[Shape], batch: int, side: int) -> list[list[int]]:
    """Shapes with numbers where sizes are open: a size has one number wherever its name stands.

    A name that stands first in any shape counts samples, and so does a first axis without a name.

    >>> settled_shapes([("batch", 3, "h", "w"), (2, "batch", 64)], 4, 32)
    [[4, 3, 32, 32], [2, 4, 64]]
    """
    counted = {shape[0] for shape in shapes if shape and isinstance(shape[0], str) and shape[0]}

    def number(size: int | str | None, axis: int) -> int:
        if isinstance(size, int) and size > 0:
            return size
        return batch if axis == 0 or size in counted else side

    return [[number(size, axis) for axis, size in enumerate(shape)] for shape in shapes]
