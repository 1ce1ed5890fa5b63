"""Residual streams that may be turned: what writes to one, and what reads it behind a norm of whole vectors.

A norm over all channels sees the length of a vector and not its direction. So any turn of the stream passes, as long as
what stands channel by channel behind the norm is taken up by the layers that read it. The graph says which tensors
belong to a stream; whether it may be turned is for the caller to try.
"""

from __future__ import annotations

from dataclasses import dataclass

from canon.graph.spec import ChannelGraph, LinearMap, Space


@dataclass(frozen=True)
class Reader:
    """Layers that read a stream behind one norm."""

    gain: str | None
    """The norm's factors."""

    shift: str | None
    weights: tuple[tuple[str, int, int], ...]
    """Weights by name, the axis of them that reads, and where on it the stream begins."""


@dataclass(frozen=True)
class Stream:
    """A residual stream."""

    name: str
    width: int
    tables: tuple[tuple[str, int], ...]
    """Of the writers: those that nothing stands in front of, such as embeddings."""

    writers: tuple[tuple[str, int, str | None], ...]
    """Weights by name, the axis of them that writes, and their bias."""

    readers: tuple[Reader, ...]

    @property
    def gains(self) -> tuple[str, ...]:
        """The factors behind all norms."""
        return tuple(reader.gain for reader in self.readers if reader.gain is not None)


def streams_of(graph: ChannelGraph) -> tuple[Stream, ...]:
    """Every stream of a graph that begins at a table of rows, such as an embedding."""
    found = (_stream(graph, space) for space in graph.spaces if space.rigid is not None and not space.pins)
    return tuple(stream for stream in found if stream is not None)


def _stream(graph: ChannelGraph, space: Space) -> Stream | None:
    made = [graph.maps[producer.map] for producer in space.producers]
    plain = all(_whole(one) for one in made) and all(consumer.repeat == 1 for consumer in space.consumers)
    if space.groups != 1 or not plain or not space.consumers:
        return None
    scales = {s.output: s.params["weight"] for s in space.stages if s.kind == "scale"}
    shifts = {s.output: (s.params["bias"], s.inputs[0]) for s in space.stages if s.kind == "shift"}
    read: dict[tuple[str | None, str | None], list[tuple[str, int, int]]] = {}
    for consumer in space.consumers:
        linear = graph.maps[consumer.map]
        if linear.groups != 1:
            return None
        shift, point = shifts.get(consumer.point, (None, consumer.point))
        gain = scales.get(point)
        entry = (linear.weight, linear.column_axis, consumer.offset)
        entries = read.setdefault((gain, shift), [])
        if entry not in entries:
            entries.append(entry)
    tables = tuple((one.weight, one.row_axis) for one in made if one.columns is None)
    writers = tuple(dict.fromkeys((one.weight, one.row_axis, one.bias) for one in made))
    readers = tuple(Reader(*norm, tuple(weights)) for norm, weights in read.items())
    return Stream(space.name, space.width, tables, writers, readers) if tables else None


def _whole(linear: LinearMap) -> bool:
    return len(linear.rows) == 1 and linear.rows[0].repeat == 1 and linear.groups == 1
