"""A network's skeleton: how it is wired, whatever its widths and names. What was widened keeps it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from canon.graph import ChannelGraph, Segment


def skeleton_of(graph: ChannelGraph) -> str:
    """SHA-256 of a network's skeleton."""
    return hashlib.sha256(json.dumps(skeleton(graph), separators=(",", ":")).encode()).hexdigest()


def skeleton(graph: ChannelGraph) -> list[object]:
    """Layers, spaces and taps of a network, as plain data without widths."""
    numbers: dict[str, int] = {}

    def number(tensor: str | None) -> int | None:
        return None if tensor is None else numbers.setdefault(tensor, len(numbers))

    maps: list[object] = [
        [number(linear.weight), number(linear.bias), linear.groups, _segments(linear.rows), _segments(linear.columns)]
        for linear in graph.maps
    ]
    spaces: list[object] = [
        [
            space.groups,
            bool(space.pins),
            [[p.map, p.repeat, p.point] for p in space.producers],
            [[c.map, c.repeat, c.point, c.tap] for c in space.consumers],
            [
                [s.kind, s.inputs, s.output, [[r, number(n)] for r, n in sorted(s.params.items())], s.repeat]
                for s in space.stages
            ],
        ]
        for space in graph.spaces
    ]
    shuffled = sorted([number(name), axis, order] for (name, axis), order in graph.orders.items())
    taps: list[object] = [sorted(graph.taps.items()), sorted(graph.fixed_taps), sorted(graph.signed_taps)]
    return [maps, spaces, *taps, *([shuffled] if shuffled else [])]


def _segments(segments: Sequence[Segment] | None) -> list[list[int]] | None:
    return None if segments is None else [[s.space, s.repeat, s.point, s.tap] for s in segments]
