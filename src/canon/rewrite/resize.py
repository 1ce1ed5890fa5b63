"""A channel graph after spaces became narrower or wider: the same graph, with every offset where it is then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from canon.graph import ChannelGraph, LinearMap, Segment, Space, Stage
from canon.rewrite.kernels import Ends

Starts = dict[int, int]
"""By where a stretch of an axis starts before: where it starts after."""


def resize(
    graph: ChannelGraph, widths: Mapping[int, int], kernels: Mapping[str, Sequence[Ends]] = MappingProxyType({})
) -> ChannelGraph:
    """The graph of the same model with other widths, without tracing it again.

    Args:
        graph: The graph before.
        widths: By space id, the widths after; a space that is not listed stays.
        kernels: By weight of a convolution: what goes of its kernels, with the padding.
    """
    graph = replace(graph, maps=tuple(_less_padded(linear, kernels.get(linear.weight, ())) for linear in graph.maps))
    if all(graph.spaces[space].width == width for space, width in widths.items()):
        return graph
    width = {space.id: widths.get(space.id, space.width) for space in graph.spaces}
    rows = [_starts(((s.space, s.offset, s.repeat) for s in linear.rows), width) for linear in graph.maps]
    columns = [_starts(((s.space, s.offset, s.repeat) for s in m.columns or ()), width) for m in graph.maps]
    stages = _stage_starts(graph, width)
    return replace(
        graph,
        maps=tuple(_map(linear, width, rows[i], columns[i]) for i, linear in enumerate(graph.maps)),
        spaces=tuple(_space(space, width[space.id], rows, columns, stages) for space in graph.spaces),
    )


def _starts(stretches: Iterable[tuple[int, int, int]], width: Mapping[int, int]) -> Starts:
    found, start = {}, 0
    for space, offset, repeat in sorted(stretches, key=lambda stretch: stretch[1]):
        found[offset] = start
        start += width[space] * repeat
    return found


def _stage_starts(graph: ChannelGraph, width: Mapping[int, int]) -> dict[str, Starts]:
    """By node: one layer may go over several spaces, side by side."""
    found: dict[str, dict[int, Stage]] = defaultdict(dict)
    for space in graph.spaces:
        for stage in space.stages:
            if stage.params:
                found[stage.node][stage.offset] = stage
    return {
        node: _starts(((s.space, s.offset, s.repeat) for s in stages.values()), width) for node, stages in found.items()
    }


def _less_padded(linear: LinearMap, ends: Sequence[Ends]) -> LinearMap:
    if not ends or linear.cropping is None:
        return linear
    cropping = tuple(pad - first for pad, (first, _) in zip(linear.cropping, ends, strict=True))
    return replace(linear, cropping=cropping, zero_padding=linear.zero_padding and any(cropping))


def _map(linear: LinearMap, width: Mapping[int, int], rows: Starts, columns: Starts) -> LinearMap:
    def moved(segment: Segment, starts: Starts) -> Segment:
        return replace(segment, offset=starts[segment.offset], length=width[segment.space] * segment.repeat)

    read = None if linear.columns is None else tuple(moved(s, columns) for s in linear.columns)
    return replace(linear, rows=tuple(moved(s, rows) for s in linear.rows), columns=read)


def _space(space: Space, width: int, rows: list[Starts], columns: list[Starts], stages: Mapping[str, Starts]) -> Space:
    return replace(
        space,
        width=width,
        producers=tuple(replace(p, offset=rows[p.map][p.offset]) for p in space.producers),
        consumers=tuple(replace(c, offset=columns[c.map][c.offset]) for c in space.consumers),
        stages=tuple(replace(s, offset=stages[s.node][s.offset]) if s.params else s for s in space.stages),
    )
