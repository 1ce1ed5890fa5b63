"""What a common start explains: networks that were trained apart from the same first weights.

Training adds little to the first weights of a network that learns something easy. Rows of two such networks agree as
far as both are still what they were, and no row alone tells that from theft. What they differ in was learned, and what
is learned has directions that many rows share; noise, rounding and pruning have none.

In these directions the difference takes back what the owner's rows have: with first weights `s`, the owner's `s + a`
and the other's `s + b`, it is `b - a`, and its product with the owner's rows is half its square, negative, where both
learned as much. Whoever trains on from the owner's adds to what is there. First weights blur this: how far is seen from
the products with other rows, which have nothing to do with the difference. Unless a difference that was learned is
known to add, a common start would leave it as well. The same holds of two networks that were fine-tuned from one public
model. Whose it is, is then not decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from canon.containment.extract import column_norms
from canon.containment.found import Found
from canon.containment.location import Start
from canon.containment.matching import LEAST
from canon.graph import ChannelGraph, Segment
from canon.verify.portrait import Portrait, directions
from canon.verify.side import Part, movable
from canon.verify.traced import Traced

SHARED: Final = 0.035
SHARED_IN_PORTRAITS: Final = 0.045
"""Part of a difference that lies in shared directions from which on it was learned, by weights and by what a key keeps
of them; noise was seen at up to 0.03 and 0.036."""

SHARED_IF_MOVED: Final = 0.105
"""The same where channels were moved, and scaled with it: rounding is then larger in some columns than in others, which
looks shared once rows are projected."""

OUT_OF_PLACE: Final = 0.1
"""Share of the channels that stand elsewhere than the owner's, from which on they were moved."""

ROWS: Final = 512
"""Rows of a layer that are compared with each other, in as many columns: of noise, that leaves 0.003."""


TURNS: Final = 16
"""Ways in which rows are held against differences of other rows, to see what chance gives."""


def start_by_weights(
    ours: Traced, theirs: Traced, found: Mapping[int, Found], fitted: frozenset[int], seed: int
) -> Start | None:
    """How the extracted model differs from the owner's, beyond the first layers, where both have rows and columns.

    Args:
        ours: The extracted model, in the owner's layout, as it was before columns were refitted.
        theirs: The owner's model.
        found: By space: which of the owner's channels were found.
        fitted: Maps whose numbers were fitted by least squares, which makes shared directions of noise.
        seed: Chooses rows and columns of wide layers.

    Returns:
        None where nothing can be compared.
    """
    sums = _Sums()
    for index, linear in enumerate(theirs.graph.maps):
        mine, yours = (side.tensors[linear.weight].detach() for side in (ours, theirs))
        if linear.columns is None or linear.groups > 1 or mine.shape != yours.shape or index in fitted:
            continue
        rows, columns = (_here(part, theirs.graph, found) for part in (linear.rows, linear.columns))
        chosen, part = _some(rows, seed)
        chosen, some = chosen.to(yours.device), _some(columns, seed)[0].to(yours.device)
        axes = (linear.row_axis, linear.column_axis)
        first, second = (w.movedim(axes, (0, 1))[chosen][:, some].float().flatten(1) for w in (yours, mine))
        first, second = (torch.nn.functional.normalize(part, dim=1) for part in (first, second))
        alike = (first * second).sum(dim=1) >= LEAST  # others were replaced, which is no training
        first, second = first[alike], second[alike]
        # Had every entry a random sign, two rows' product squared would be this much on average.
        sums.add(first, second, lambda rows: _pairs(rows.square()), part)
    return sums.start(_moved(found), SHARED) if sums.size else None


def start_by_portrait(
    portrait: Portrait, found: Mapping[int, Found], suspect: Traced, fitted: frozenset[int]
) -> Start | None:
    """The same from what a key keeps of rows.

    Args:
        portrait: The owner's.
        found: By space: what was found.
        suspect: The suspect.
        fitted: As above.
    """
    sums, graph = _Sums(), suspect.graph
    for step in {step.space: step for step in portrait.steps}.values():
        if all(graph.maps[index].columns is None for index in step.maps) or fitted & {*step.maps}:
            continue
        item = found[step.space]
        here, part = _some(item.accepted.found, portrait.seed)
        (first, parts), (second, _) = (directions(x.double()[here], step.parts) for x in (step.features, item.features))
        first, second = _alike(first, second, parts)
        # Projections of rows that share nothing; rows of few entries share what the projection does to these.
        blocks = sum(part.blocks for part in parts)
        entries = sum(1 / _entries(suspect, index, found) for index in step.maps) / len(step.maps)
        alone = 1 / max(1, first.shape[1]) + entries / max(1, blocks)
        sums.add(first, second, lambda rows, a=alone: a * _pairs(rows.square().sum(dim=1, keepdim=True)), part)  # type: ignore[misc]
    return sums.start(_moved(found), SHARED_IN_PORTRAITS) if sums.size else None


@dataclass
class _Sums:
    """What layers add up to."""

    size: float = 0.0
    changed: float = 0.0
    shared: float = 0.0
    owner: float = 0.0
    weight: float = 0.0
    added: float = 0.0
    variance: float = 0.0

    def add(self, first: Tensor, second: Tensor, expected: Callable[[Tensor], float], part: float) -> None:
        """One layer: the owner's rows, the suspect's, and the squared products of such rows if they share nothing.

        The rows are this part of the layer's, and stand for all of them.
        """
        gap, apart = _gap(first, second), second - first
        self.size += float(first.square().sum()) / part
        self.changed += float(gap.square().sum()) / part
        self.shared += _shared(gap, expected(gap)) / part
        self.owner += _shared(first, expected(first)) / part
        # Every row's difference along those of all others: shared directions, each by its size.
        others = (apart @ apart.T).fill_diagonal_(0.0)
        weight = float(torch.linalg.vector_norm(others))
        if weight > 0:
            products = others @ apart
            self.added += float((products * first).sum()) / weight / part
            self.weight += weight / part
            orders = (torch.roll(first, turn, dims=0) for turn in range(1, min(TURNS, len(first) - 1) + 1))
            drawn = [float((products * other).sum()) / weight / part for other in orders]
            self.variance += sum(x * x for x in drawn) / max(1, len(drawn))

    def start(self, moved: bool, bar: float) -> Start:
        """All layers together."""
        return Start(
            self.changed / self.size if self.size else 0.0,
            self.shared / self.changed if self.changed else 0.0,
            self.owner / self.size if self.size else 0.0,
            self.added / self.weight if self.weight else 0.0,
            math.sqrt(self.variance) / self.weight if self.weight else math.inf,
            moved,
            SHARED_IF_MOVED if moved else bar,
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


def _entries(suspect: Traced, index: int, found: Mapping[int, Found]) -> float:
    """In how many numbers of a row, as the owner has it, noise would be: copies of one channel bring theirs together,
    and what is louder in some columns than in others is in fewer of them."""
    linear = suspect.graph.maps[index]
    weight = suspect.tensors[linear.weight]
    places = weight.numel() / weight.shape[linear.row_axis] / weight.shape[linear.column_axis]
    loud = column_norms(weight, linear).square()
    if linear.columns is None:
        return loud.numel() / linear.groups * places
    counts = []
    for noise in (loud, torch.ones_like(loud)):  # as large as the numbers, or the same everywhere
        whole = torch.cat([_gathered(noise, segment, suspect.graph, found) for segment in linear.columns])
        counts.append(float(whole.sum().square() / whole.square().sum().clamp(min=1e-300)))
    return max(1.0, min(counts) / linear.groups * places)


def _gathered(noise: Tensor, segment: Segment, graph: ChannelGraph, found: Mapping[int, Found]) -> Tensor:
    """Squares of the noise of columns, added up under the owner's channels."""
    part = noise[segment.offset : segment.offset + segment.length].view(-1, segment.repeat)
    if segment.space not in found or not movable(graph.spaces[segment.space]):
        return part.flatten()
    item = found[segment.space]
    match, factor = item.accepted.match, item.factors.get(segment.tap)
    part, here = part if factor is None else part * factor.square()[:, None], match >= 0
    whole = torch.zeros(item.accepted.best.numel(), segment.repeat, dtype=part.dtype)
    return whole.index_add(0, match[here], part[here]).flatten()


def _moved(found: Mapping[int, Found]) -> bool:
    """Whether channels stand in other places than the owner's."""
    elsewhere = total = 0
    for item in found.values():
        match = item.accepted.match
        place = torch.arange(match.numel())
        elsewhere += int(((match >= 0) & (match != place)).sum())
        total += match.numel()
    return elsewhere > OUT_OF_PLACE * total


def _gap(first: Tensor, second: Tensor) -> Tensor:
    """What rows have that the owner's have not, in any size."""
    size = first.square().sum(dim=1, keepdim=True).clamp(min=1e-30)
    return second - first * ((first * second).sum(dim=1, keepdim=True) / size)


def _shared(rows: Tensor, expected: float) -> float:
    """How much of the rows, in squares, lies in directions that several share: all of it if there is one only."""
    products = (rows @ rows.T).square().fill_diagonal_(0.0)
    return math.sqrt(max(0.0, float(products.sum(dtype=torch.float64)) - expected))


def _pairs(rows: Tensor) -> float:
    """Sum of the products of all pairs of rows that are not the same."""
    wide = rows.double()
    return float(wide.sum(dim=0).square().sum() - wide.square().sum())


def _some(here: Tensor, seed: int) -> tuple[Tensor, float]:
    """Of the channels that were found, all or as many as it takes, and which part of them that is."""
    index = torch.nonzero(here).flatten()
    if index.numel() <= ROWS:
        return index, 1.0
    order = torch.randperm(index.numel(), generator=torch.Generator().manual_seed(seed))
    return index[order[:ROWS].sort().values], ROWS / index.numel()


def _here(segments: Sequence[Segment], graph: ChannelGraph, found: Mapping[int, Found]) -> Tensor:
    """Which entries of an axis belong to channels that were found."""
    parts = []
    for segment in segments:
        channels = segment.length // segment.repeat
        there = segment.space in found and movable(graph.spaces[segment.space])
        here = found[segment.space].accepted.found if there else torch.ones(channels, dtype=torch.bool)
        parts.append(here.repeat_interleave(segment.repeat))
    return torch.cat(parts)
