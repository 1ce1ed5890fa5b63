"""What a common start explains: networks that were trained apart from the same first weights.

Training adds little to the first weights of a network that learns something easy. Rows of two such networks agree as
far as both are still what they were, and no row alone tells that from theft. But what two networks that were trained
apart differ in was learned, and what is learned has directions that many rows share; noise, rounding and pruning have
none, and mild fine-tuning changes little. So a difference that is large and shared is what a common start would leave.

A smaller one is so if it also takes back what the owner's rows have in these directions: with first weights `s`, the
owner's `s + a` and the other's `s + b`, the difference is `b - a`, and its product with the owner's rows is half its
square, negative, where both learned as much. Whoever trains on from the owner's adds to what is there. The same holds
of two networks that were fine-tuned from one public model. Whose it is, is then not decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from canon.containment.location import Start
from canon.containment.matching import LEAST
from canon.containment.walk import Found
from canon.graph import ChannelGraph, Segment
from canon.verify.portrait import Portrait, directions
from canon.verify.side import Part, movable
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
    sums = _Sums()
    for linear in theirs.graph.maps:
        mine, yours = (side.tensors[linear.weight].detach() for side in (ours, theirs))
        if linear.columns is None or linear.groups > 1 or mine.shape != yours.shape:
            continue
        rows, columns = (_here(part, theirs.graph, found).to(yours.device) for part in (linear.rows, linear.columns))
        axes = (linear.row_axis, linear.column_axis)
        first, second = (w.movedim(axes, (0, 1)).float()[rows][:, columns].flatten(1) for w in (yours, mine))
        first, second = (torch.nn.functional.normalize(part, dim=1) for part in (first, second))
        alike = (first * second).sum(dim=1) >= LEAST  # others were replaced, which is no training
        first, second = first[alike], second[alike]
        squares = _gap(first, second).square()
        # Had every entry a random sign, two rows' product squared would be this much on average.
        sums.add(first, second, squares @ squares.T)
    return sums.start(SHARED)


def start_by_portrait(portrait: Portrait, found: Mapping[int, Found], graph: ChannelGraph) -> Start:
    """The same from what a key keeps of rows.

    Args:
        portrait: The owner's.
        found: By space: what was found.
        graph: The graph of the extracted model.
    """
    sums = _Sums()
    for step in {step.space: step for step in portrait.steps}.values():
        if all(graph.maps[index].columns is None for index in step.maps):
            continue
        item = found[step.space]
        here = item.accepted.found
        (first, parts), (second, _) = (directions(x.double()[here], step.parts) for x in (step.features, item.features))
        first, second = _alike(first, second, parts)
        length = _gap(first, second).square().sum(dim=1)
        # Projections of rows that share nothing.
        sums.add(first, second, length[:, None] * length / max(1, first.shape[1]))
    # Rounding that is larger in some columns than in others looks shared once rows are projected.
    return replace(sums.start(SHARED_IN_PORTRAITS), added=0.0)


@dataclass
class _Sums:
    """What layers add up to."""

    size: float = 0.0
    changed: float = 0.0
    shared: float = 0.0
    weight: float = 0.0
    added: float = 0.0

    def add(self, first: Tensor, second: Tensor, expected: Tensor) -> None:
        """One layer: the owner's rows, the suspect's, and squared products of differences that share nothing."""
        gap, apart = _gap(first, second), second - first
        self.size += float(first.square().sum())
        self.changed += float(gap.square().sum())
        self.shared += _shared(gap, expected)
        # Every row's difference along those of all others: shared directions, each by its size.
        others = (apart @ apart.T).fill_diagonal_(0.0)
        weight = float(torch.linalg.vector_norm(others))
        if weight > 0:
            self.added += float((others * (first @ apart.T)).sum()) / weight
            self.weight += weight

    def start(self, bar: float) -> Start:
        """All layers together."""
        return Start(
            self.changed / self.size if self.size else 0.0,
            self.shared / self.changed if self.changed else 0.0,
            self.added / self.weight if self.weight else 0.0,
            bar,
        )


def _alike(first: Tensor, second: Tensor, parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
    """Both without directions that are nothing like each other: these were replaced, which is no training."""
    masks, start = [], 0
    for part in parts:
        ours, theirs = (x[:, start : start + part.columns].view(-1, part.blocks, part.numbers) for x in (first, second))
        alike = torch.nn.functional.cosine_similarity(ours, theirs, dim=2) >= LEAST
        masks.append(alike.repeat_interleave(part.numbers, dim=1))
        start += part.columns
    mask = torch.cat(masks, dim=1)
    return first * mask, second * mask


def _gap(first: Tensor, second: Tensor) -> Tensor:
    """What rows have that the owner's have not, in any size."""
    size = first.square().sum(dim=1, keepdim=True).clamp(min=1e-30)
    return second - first * ((first * second).sum(dim=1, keepdim=True) / size)


def _shared(rows: Tensor, expected: Tensor) -> float:
    """How much of the rows, in squares, lies in directions that several share: all of it if there is one only."""
    beyond = ((rows @ rows.T).square() - expected).fill_diagonal_(0.0)
    total = max(0.0, float(beyond.sum(dtype=torch.float64)))
    return math.sqrt(total)


def _here(segments: Sequence[Segment], graph: ChannelGraph, found: Mapping[int, Found]) -> Tensor:
    """Which entries of an axis belong to channels that were found."""
    parts = []
    for segment in segments:
        channels = segment.length // segment.repeat
        there = segment.space in found and movable(graph.spaces[segment.space])
        here = found[segment.space].accepted.found if there else torch.ones(channels, dtype=torch.bool)
        parts.append(here.repeat_interleave(segment.repeat))
    return torch.cat(parts)
