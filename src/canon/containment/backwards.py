"""Channels known by what reads them, from the outputs backwards, where nothing is known of what makes them.

Behind a first layer that was replaced no row has coordinates. Outputs have: a column of the last layer says which of
the owner's channels it reads, and with what scale. With the rows of a layer known, its columns tell the channels before
it. The suspect is written with its channels in the owner's places, which changes nothing that it computes; whether rows
are then the owner's is left to the walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from canon.describe import Parameters
from canon.graph import Consumer, Segment, Space
from canon.rewrite import SpaceRewrite, rewrite
from canon.rewrite.axes import by_row, repeated
from canon.transforms import entries
from canon.verify.side import movable
from canon.verify.traced import Traced

COLUMNS_ALIKE: Final = 0.9
"""Cosine from which on two columns read one channel."""

MOST_OF_THEM: Final = 0.5
"""Share of a space's channels that must have such a column."""

WIDEST: Final = 4096
"""Channels of a space at most."""


@dataclass(frozen=True, eq=False)
class Places:
    """Whose channels a space's are."""

    order: Tensor
    """For every channel of the owner's the suspect's."""

    scale: Tensor
    """The owner's channel over the suspect's."""


def in_owner_places(suspect: Traced, owner: Traced) -> Traced | None:
    """The suspect with channels where the owner has those that are read alike; None: none are."""
    found: dict[int, Places] = {}
    sides = [(side, Parameters(side.graph, side.tensors)) for side in (suspect, owner)]
    waiting = [space for space in reversed(suspect.graph.spaces) if _fits(space, owner.graph.spaces[space.id])]
    changed = True
    while changed:
        changed = False
        for space in list(waiting):
            known = [c for c in space.consumers if _known(suspect, owner, c, found)]
            mine, yours = (
                [_columns(*side, space, consumer, found if side[0] is suspect else {}) for consumer in known]
                for side in sides
            )
            places = _match(torch.cat(mine, dim=1), torch.cat(yours, dim=1)) if known else None
            if places is not None:
                found[space.id] = places
                waiting.remove(space)
                changed = True
    if not found:
        return None
    moved = rewrite(suspect.model, suspect.graph, {i: SpaceRewrite.permutation(p.order) for i, p in found.items()})
    graph, gains = suspect.graph, {}
    for index, places in found.items():
        taps = {consumer.tap for consumer in graph.spaces[index].consumers} - graph.fixed_taps
        gains[index] = SpaceRewrite.scaling(places.order.numel(), dict.fromkeys(taps, places.scale))
    return Traced.like(rewrite(moved, graph, gains), suspect.example, suspect)


def _fits(space: Space, own: Space) -> bool:
    return movable(space) and space.width == own.width <= WIDEST and space.groups == 1 and bool(space.consumers)


def _known(suspect: Traced, owner: Traced, consumer: Consumer, found: dict[int, Places]) -> bool:
    """Whether the rows of a layer have their places: they were found, or are held where the owner's are."""
    linear = suspect.graph.maps[consumer.map]
    rows = [suspect.graph.spaces[segment.space] for segment in linear.rows]
    held = [not movable(space) and space.width == owner.graph.spaces[space.id].width for space in rows]
    return linear.groups == 1 and all(space.id in found or here for space, here in zip(rows, held, strict=True))


def _columns(
    side: Traced, parameters: Parameters, space: Space, consumer: Consumer, found: dict[int, Places]
) -> Tensor:
    """`channels x numbers`: what a layer takes of each channel, with its rows in their places and scales."""
    linear = side.graph.maps[consumer.map]
    weight = by_row(side.tensors[linear.weight], linear).double().cpu()
    length = space.width * consumer.repeat
    weight = weight[:, consumer.offset : consumer.offset + length].reshape(weight.shape[0], space.width, -1)
    parts = [_rows(side, parameters, weight, segment, found.get(segment.space)) for segment in linear.rows]
    return torch.cat(parts).transpose(0, 1).flatten(1)


def _rows(side: Traced, parameters: Parameters, weight: Tensor, segment: Segment, places: Places | None) -> Tensor:
    rows = weight[segment.offset : segment.offset + segment.length]
    space = side.graph.spaces[segment.space]
    for stage in space.stages:
        if stage.kind == "norm" and stage.inputs[0] == segment.point and stage.repeat == segment.repeat == 1:
            rows = rows * torch.from_numpy(parameters.affine(stage, space).factor)[:, :, None]
            break
    if places is None:
        return rows
    return rows[entries(places.order, segment.repeat)] * repeated(places.scale, segment.repeat)[:, None, None]


def _match(mine: Tensor, yours: Tensor) -> Places | None:
    """Whose columns are whose; None: too few are anybody's."""
    sizes = [torch.linalg.vector_norm(side, dim=1) for side in (mine, yours)]
    first, second = (torch.nn.functional.normalize(side, dim=1) for side in (mine, yours))
    alike = second @ first.T
    _, order = linear_sum_assignment(alike.numpy(), maximize=True)
    chosen = torch.from_numpy(order)
    near = alike.gather(1, chosen[:, None])[:, 0] >= COLUMNS_ALIKE
    if not bool(torch.isfinite(alike).all()) or float(near.double().mean()) < MOST_OF_THEM:
        return None
    ratio = sizes[0][chosen] / torch.where(sizes[1] > 0, sizes[1], 1.0)
    return Places(chosen, torch.where(near & (ratio > 0), ratio, 1.0))
