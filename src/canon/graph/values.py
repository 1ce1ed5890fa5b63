"""What the rules are given: tensors known by shape only, and numbers that count channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from canon.graph.blocks import Part

Parts = tuple[Part, ...]
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class ChannelAxis:
    """Where an activation's channels are: the axis and the parts it is made of."""

    axis: int
    parts: Parts

    folded: tuple[int, ...] = ()
    """While a reshape has it in several axes: where each of them is, the most significant first, which `axis` is."""


@dataclass(frozen=True)
class Value:
    """An operand of a rule: a tensor known by shape only, with what is known of its channels."""

    data: Tensor
    """A meta or fake tensor."""

    channels: ChannelAxis | None = None
    """None: coordinates are fixed, or nothing is known."""

    param: str | None = None
    """The tensor's name when it is a parameter or buffer of the model."""

    turned: bool = False
    """Whether it is such a tensor, of two axes, with these the other way around."""

    zeros: bool = False
    """Whether it was made in the forward pass and holds nothing but zeros."""

    @property
    def shape(self) -> torch.Size:
        """The operand's shape."""
        return self.data.shape


class Extent(int):
    """The length of a channel axis, read from a shape in the forward pass: it changes when the channels do.

    Passed to a reshape it follows a rewrite by itself; in any other computation it would change the function.
    """

    parts: Parts

    @staticmethod
    def of(length: int, parts: Parts) -> Extent:
        """The length of an axis made of these parts."""
        extent = Extent(length)
        extent.parts = parts
        return extent

    def times(self, factor: int) -> Extent:
        """The length after a flatten of `factor` positions."""
        return Extent.of(int(self) * factor, tuple(part.repeated(factor) for part in self.parts))


def shape_of(value: Value) -> tuple[int, ...]:
    """A value's shape, its channel axis as an `Extent`."""
    shape = list(value.shape)
    if value.channels is not None and not value.channels.folded:
        shape[value.channels.axis] = Extent.of(shape[value.channels.axis], value.channels.parts)
    return tuple(shape)


def leaves(structure: Any) -> Iterator[Any]:
    """Everything inside nested lists, tuples, dicts and slices."""
    if isinstance(structure, (list, tuple)):
        for item in structure:
            yield from leaves(item)
    elif isinstance(structure, dict):
        yield from leaves(list(structure.values()))
    elif isinstance(structure, slice):
        yield from (structure.start, structure.stop, structure.step)
    else:
        yield structure


_PLAIN = frozenset({int, float, bool, str, type(None)})


def values_in(structure: Any) -> list[Value]:
    """The tensors inside a structure of operands."""
    return _found(structure, Value, [])


def extents_in(structure: Any) -> list[Extent]:
    """The channel counts inside a structure of operands."""
    return _found(structure, Extent, [])


def _found(structure: Any, kind: type[Kind], found: list[Kind]) -> list[Kind]:
    """The leaves of one kind; every step of a trace asks for some, so no generators are nested."""
    if type(structure) in _PLAIN:
        return found
    if isinstance(structure, kind):
        found.append(structure)
    elif isinstance(structure, (list, tuple)):
        for item in structure:
            _found(item, kind, found)
    elif isinstance(structure, dict):
        for item in structure.values():
            _found(item, kind, found)
    elif isinstance(structure, slice):
        _found((structure.start, structure.stop, structure.step), kind, found)
    return found


def has_tensor(structure: Any) -> bool:
    """Whether a result holds a tensor anywhere."""
    return any(isinstance(leaf, Tensor) for leaf in leaves(structure))


def data_of(value: Any) -> Any:
    """The same structure with meta tensors and plain numbers, to run the operation on."""
    if isinstance(value, Value):
        return value.data
    if isinstance(value, Extent):
        return int(value)
    if isinstance(value, list):
        return [data_of(v) for v in value]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        items = [data_of(v) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {k: data_of(v) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(data_of(value.start), data_of(value.stop), data_of(value.step))
    return value


def fixed(value: Any) -> Any:
    """A result that carries no channels: tensors become values with fixed coordinates."""
    if isinstance(value, Tensor):
        return Value(value if value.is_meta else value.to("meta"))
    if type(value) in (list, tuple):
        return type(value)(fixed(v) for v in value)
    return value
