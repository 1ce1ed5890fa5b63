"""Channels known by what reads them, from the outputs backwards, where nothing is known of what makes them.

Behind a layer that was replaced no row has coordinates. Outputs have: a column of the last layer says which of the
owner's channels it reads, and with what scale. With the rows of a layer known, its columns tell the channels before it.
As in the walk, several channels may be copies of one, and what is like none of the owner's is nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from canon.describe import Parameters
from canon.graph import Consumer, Segment, Space
from canon.rewrite.axes import by_row, repeated
from canon.transforms import entries
from canon.verify.side import movable
from canon.verify.traced import Traced

COLUMNS_ALIKE: Final = 0.9
"""Cosine from which on two columns read one channel."""

MOST_OF_THEM: Final = 0.5
"""Share of the owner's channels that must have such a column."""

WIDEST: Final = 4096
"""Channels of a space at most."""


@dataclass(frozen=True, eq=False)
class Places:
    """Whose channels a space's are, by what is known without their rows."""

    match: Tensor
    """For every channel of the suspect the owner's, or -1."""

    factor: Tensor
    """The suspect's channel over the owner's, where it is read."""

    @staticmethod
    def as_they_stand(width: int) -> Places:
        """Every channel in its own place."""
        return Places(torch.arange(width), torch.ones(width, dtype=torch.float64))

    def gathered(self, rows: Tensor, segment: Segment, channels: int) -> Tensor:
        """Rows of a suspect, averaged under the owner's channels and in their scales; zero where there are none."""
        here = torch.nonzero(self.match >= 0).flatten()
        scaled = rows[entries(here, segment.repeat)] / repeated(self.factor[here], segment.repeat)[:, None, None]
        count = torch.bincount(self.match[here], minlength=channels).clamp(min=1).double()
        whole = rows.new_zeros(channels * segment.repeat, *rows.shape[1:])
        whole.index_add_(0, entries(self.match[here], segment.repeat), scaled)
        return whole / repeated(count, segment.repeat)[:, None, None]


@dataclass(frozen=True, eq=False)
class _Side:
    """One of the two networks."""

    traced: Traced
    parameters: Parameters

    @staticmethod
    def of(traced: Traced) -> _Side:
        return _Side(traced, Parameters(traced.graph, traced.tensors))

    def columns(self, consumer: Consumer, space: Space, rows: list[Tensor]) -> Tensor:
        """`channels x numbers`: what a layer with these rows takes of each channel."""
        length = space.width * consumer.repeat
        parts = [part[:, consumer.offset : consumer.offset + length] for part in rows]
        return torch.cat([p.unflatten(1, (space.width, consumer.repeat)).transpose(0, 1).flatten(1) for p in parts], 1)

    def rows(self, consumer: Consumer) -> list[Tensor]:
        """The rows of a layer by the space that they make, each as large as behind the norm that follows."""
        linear = self.traced.graph.maps[consumer.map]
        weight = by_row(self.traced.tensors[linear.weight], linear).double().cpu().flatten(2)
        return [self._behind_norm(weight[s.offset : s.offset + s.length], s) for s in linear.rows]

    def _behind_norm(self, rows: Tensor, segment: Segment) -> Tensor:
        space = self.traced.graph.spaces[segment.space]
        for stage in space.stages:
            if stage.kind == "norm" and stage.inputs[0] == segment.point and stage.repeat == segment.repeat == 1:
                return rows * torch.from_numpy(self.parameters.affine(stage, space).factor)[:, :, None]
        return rows


def places_by_columns(suspect: Traced, owner: Traced) -> dict[int, Places]:
    """By space: where the owner has channels that are read as the suspect's are."""
    sides = _Side.of(suspect), _Side.of(owner)
    spaces = [space for space in suspect.graph.spaces if _told_by_columns(space)]
    found: dict[int, Places] = {}
    before = -1
    while len(found) > before:  # and once more, with all layers known
        before = len(found)
        for space in reversed(spaces):
            places = _places(space, owner.graph.spaces[space.id], *sides, found)
            if places is not None:
                found[space.id] = places
    return found


def _told_by_columns(space: Space) -> bool:
    return movable(space) and space.width <= WIDEST and space.groups == 1 and bool(space.consumers)


def _places(space: Space, own: Space, suspect: _Side, owner: _Side, known: Mapping[int, Places]) -> Places | None:
    """Whose channels a space's are by all layers that read it whose rows are known; None: they do not tell."""
    mine, yours = [], []
    for consumer, other in zip(space.consumers, own.consumers, strict=True):
        theirs = owner.rows(other)
        rows = _in_owner_places(suspect, consumer, theirs, known)
        if rows is not None and consumer.repeat == other.repeat:
            mine.append(suspect.columns(consumer, space, rows))
            yours.append(owner.columns(other, own, theirs))
    return _match(torch.cat(mine, dim=1), torch.cat(yours, dim=1)) if mine else None


def _in_owner_places(
    suspect: _Side, consumer: Consumer, theirs: list[Tensor], known: Mapping[int, Places]
) -> list[Tensor] | None:
    """The rows of a layer in the owner's places and scales; None where these are not known."""
    graph, found = suspect.traced.graph, []
    linear = graph.maps[consumer.map]
    if linear.groups > 1:
        return None
    for rows, segment, own in zip(suspect.rows(consumer), linear.rows, theirs, strict=True):
        held = not movable(graph.spaces[segment.space]) and rows.shape[0] == own.shape[0]
        if not held and segment.space not in known:
            return None
        channels = own.shape[0] // segment.repeat
        found.append(rows if held else known[segment.space].gathered(rows, segment, channels))
    return found


def _match(mine: Tensor, yours: Tensor) -> Places | None:
    """Whose columns are whose; None: too few are anybody's."""
    first, second = (torch.nn.functional.normalize(side, dim=1) for side in (mine, yours))
    alike, match = (first @ second.T).max(dim=1)
    match = torch.where(alike >= COLUMNS_ALIKE, match, -1)
    here = match >= 0
    copies = torch.bincount(match[here], minlength=len(yours))
    if float((copies > 0).double().mean()) < MOST_OF_THEM:
        return None
    owner = match.clamp(min=0)
    share = (mine * yours[owner]).sum(dim=1) / yours[owner].square().sum(dim=1).clamp(min=1e-300)
    # What copies carry is shared out in a way that columns alone do not tell: as if it were evenly.
    return Places(match, torch.where(here, 1 / (share * copies[owner]).clamp(min=1e-30), 1.0))
