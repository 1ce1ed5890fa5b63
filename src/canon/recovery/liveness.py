"""Liveness: a channel is alive if a living row reads it, starting from what may not change.

The least fixpoint, so that dummies which only feed each other are found dead too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from canon.graph import ChannelGraph, LinearMap
from canon.rewrite.axes import repeated

Live = dict[int, Tensor]
"""By space id: which of its (kept) channels are alive."""

Reads = Callable[[Tensor], Tensor]
"""From living rows, `groups x rows`, to the columns that some of them read, `groups x columns`."""


def find_live(
    graph: ChannelGraph,
    widths: Mapping[int, int],
    reads: Mapping[int, Reads],
    protected: Mapping[int, Tensor],
) -> Live:
    """Channels that something alive reads.

    Args:
        graph: The channel graph.
        widths: By space id, the number of kept channels.
        reads: By map index: which columns given rows read.
        protected: By space id, channels that stay alive whatever reads them.
    """
    live: Live = {}
    for space in graph.spaces:
        always = bool(space.pins) or not space.consumers
        live[space.id] = torch.full((widths[space.id],), always, dtype=torch.bool)
        if space.id in protected:
            live[space.id] |= protected[space.id]
    queue = list(reversed(range(len(graph.maps))))
    waiting = set(queue)
    producers = {s.id: [p.map for p in s.producers] for s in graph.spaces}
    while queue:
        index = queue.pop(0)
        waiting.discard(index)
        linear = graph.maps[index]
        if linear.columns is None:
            continue
        rows = torch.cat([repeated(live[s.space], s.repeat) for s in linear.rows])
        read = reads[index](rows.view(linear.groups, -1)).flatten()
        for segment, part in _split(linear, read, widths):
            grown = live[segment] | part
            if not torch.equal(grown, live[segment]):
                live[segment] = grown
                fresh = [m for m in producers[segment] if m not in waiting]
                waiting.update(fresh)
                queue.extend(sorted(fresh, reverse=True))
    return live


def _split(linear: LinearMap, read: Tensor, widths: Mapping[int, int]) -> list[tuple[int, Tensor]]:
    found, offset = [], 0
    for segment in linear.columns or ():
        length = widths[segment.space] * segment.repeat
        part = read[offset : offset + length]
        found.append((segment.space, part if segment.repeat == 1 else part.view(-1, segment.repeat).any(dim=1)))
        offset += length
    return found
