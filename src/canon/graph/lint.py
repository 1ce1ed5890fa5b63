"""Invariants of a channel graph, checked after every trace: a broken graph must never reach a rewrite."""

from __future__ import annotations

from collections.abc import Mapping

from canon.errors import TraceError
from canon.graph.spec import ChannelGraph, Segment


def lint(graph: ChannelGraph, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Assert that segments tile their axes and agree with the tensors' shapes.

    Args:
        graph: The graph to check.
        shapes: Shape of every tensor by its first name.
    """
    for linear in graph.maps:
        shape = shapes[linear.weight]
        _tiles(graph, linear.rows, shape[linear.row_axis], linear.weight)
        if linear.bias is not None:
            assert shapes[linear.bias] == (shape[linear.row_axis],), (
                f"bias of {linear.name} has shape {shapes[linear.bias]}"
            )
        if linear.columns is not None:
            size = shape[linear.column_axis] * linear.groups
            _tiles(graph, linear.columns, size, linear.weight)
    for space in graph.spaces:
        assert space.width > 0, f"space {space.name} has no channels"
        for stage in space.stages:
            for name in stage.params.values():
                size = shapes[name][stage.axis]
                end = stage.offset + space.width * stage.repeat
                assert end <= size, f"{stage.kind} '{name}' ends at {size}, not {end}"


def check_fit(graph: ChannelGraph, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a model with a norm or the like that is narrower than the value that it is called on."""
    for space in graph.spaces:
        for stage in space.stages:
            for name in stage.params.values():
                size, end = shapes[name][stage.axis], stage.offset + space.width * stage.repeat
                if end > size:
                    raise TraceError(f"the {stage.kind} '{name}' has {size} numbers, and its value {end} channels")


def _tiles(graph: ChannelGraph, segments: tuple[Segment, ...], size: int, name: str) -> None:
    offset = 0
    for segment in segments:
        assert segment.offset == offset, f"segments of '{name}' leave a gap at {offset}"
        width = graph.spaces[segment.space].width
        assert segment.length == width * segment.repeat, f"segment of '{name}' is cut short"
        offset += segment.length
    assert offset == size, f"segments of '{name}' cover {offset} of {size} entries"
