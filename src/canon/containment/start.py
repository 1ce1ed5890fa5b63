"""What a common start explains: networks that were trained apart from the same first weights.

Training adds little to the first weights of a network that learns something easy. Rows of two such networks agree as
far as both are still what they were, and no row alone tells that from theft. But what two networks that were trained
apart differ in was learned, and what is learned has directions that many rows share. What is done to a copy, noise,
rounding or pruning, has none, and mild fine-tuning changes little. So a difference that is large and shared is what a
common start would leave; whose it is, is not decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from canon.containment.location import Start
from canon.containment.walk import Found
from canon.graph import ChannelGraph, Segment
from canon.verify.portrait import Portrait, directions
from canon.verify.side import movable
from canon.verify.traced import Traced

SHARED: Final = 0.07
"""Part of a difference that lies in shared directions from which on it was learned; noise was seen at up to 0.03."""

SHARED_IN_PORTRAITS: Final = 0.105
"""The same by what a key keeps of rows."""


def start_by_weights(ours: Traced, theirs: Traced, found: Mapping[int, Found]) -> Start:
    """How the extracted model differs from the owner's, beyond the first layers, where both have rows and columns.

    Args:
        ours: The extracted model, in the owner's layout, as it was before columns were refitted.
        theirs: The owner's model.
        found: By space: which of the owner's channels were found.
    """
    shared = changed = size = 0.0
    for linear in theirs.graph.maps:
        mine, yours = (side.tensors[linear.weight].detach() for side in (ours, theirs))
        if linear.columns is None or linear.groups > 1 or mine.shape != yours.shape:
            continue
        rows, columns = (_here(part, theirs.graph, found).to(yours.device) for part in (linear.rows, linear.columns))
        axes = (linear.row_axis, linear.column_axis)
        first, second = (w.movedim(axes, (0, 1)).float()[rows][:, columns].flatten(1) for w in (yours, mine))
        gap = _gap(*(torch.nn.functional.normalize(part, dim=1) for part in (first, second)))
        squares = gap.square()
        # Had every entry a random sign, two rows' product squared would be this much on average.
        shared += _shared(gap, squares @ squares.T)
        changed += float(squares.sum())
        size += len(gap)
    return _start(shared, changed, size, SHARED)


def start_by_portrait(portrait: Portrait, found: Mapping[int, Found], graph: ChannelGraph) -> Start:
    """The same from what a key keeps of rows.

    Args:
        portrait: The owner's.
        found: By space: what was found.
        graph: The graph of the extracted model.
    """
    shared = changed = size = 0.0
    for step in {step.space: step for step in portrait.steps}.values():
        if all(graph.maps[index].columns is None for index in step.maps):
            continue
        item = found[step.space]
        here = item.accepted.found
        first, second = (directions(x.double(), step.parts)[0][here] for x in (step.features, item.features))
        gap = _gap(first, second)
        length = gap.square().sum(dim=1)
        # Projections of rows that share nothing.
        shared += _shared(gap, length[:, None] * length / max(1, gap.shape[1]))
        changed += float(length.sum())
        size += float(first.square().sum())
    return _start(shared, changed, size, SHARED_IN_PORTRAITS)


def _gap(first: Tensor, second: Tensor) -> Tensor:
    """What rows have that the owner's have not, in any size."""
    size = first.square().sum(dim=1, keepdim=True).clamp(min=1e-30)
    return second - first * ((first * second).sum(dim=1, keepdim=True) / size)


def _shared(rows: Tensor, expected: Tensor) -> float:
    """How much of the rows, in squares, lies in directions that several share: all of it if there is one only."""
    beyond = ((rows @ rows.T).square() - expected).fill_diagonal_(0.0)
    return max(0.0, float(beyond.sum(dtype=torch.float64))) ** 0.5


def _start(shared: float, changed: float, size: float, bar: float) -> Start:
    return Start(changed / size if size else 0.0, shared / changed if changed else 0.0, bar)


def _here(segments: Sequence[Segment], graph: ChannelGraph, found: Mapping[int, Found]) -> Tensor:
    """Which entries of an axis belong to channels that were found."""
    parts = []
    for segment in segments:
        channels = segment.length // segment.repeat
        there = segment.space in found and movable(graph.spaces[segment.space])
        here = found[segment.space].accepted.found if there else torch.ones(channels, dtype=torch.bool)
        parts.append(here.repeat_interleave(segment.repeat))
    return torch.cat(parts)
