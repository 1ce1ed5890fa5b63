"""Spaces that are shown to be another network's, whatever was done to them that keeps the function.

That hardly any channel of a space was found shows a difference only where nothing but order and scale, and signs that
were looked for, could hide the owner's, and where what the space is made from is known. Elsewhere its channels may have
been turned, mixed or given other signs: behind a norm of whole vectors, a sigmoid, or nothing but linear layers. How
the columns of what makes a space lie to each other stays through turns and signs, so in front of the first layers that
is compared instead.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from canon.containment.walk import Walk
from canon.describe.curves import Curves
from canon.graph import ChannelGraph, LinearMap, Space, Stage
from canon.verify.side import movable
from canon.verify.traced import Traced

ALIKE: Final = 0.3
"""Correlation of inner products of columns up to which they are those of another network; turned ones have 1."""

COLUMNS: Final = 512
"""Columns at most that are compared with each other."""


def foreign_spaces(walk: Walk, owner: Traced | None) -> tuple[str, ...]:
    """The names of the spaces that are not the owner's, whatever order, scales, signs or basis they stand in."""
    curves = Curves()
    return tuple(
        space.name
        for space in walk.graph.spaces
        if space.id in walk.found and walk.poor(space.id) and _is_foreign(space, walk, owner, curves)
    )


def _is_foreign(space: Space, walk: Walk, owner: Traced | None, curves: Curves) -> bool:
    maps = {producer.map: walk.graph.maps[producer.map] for producer in space.producers}
    if movable(space) and _told_by_order(space, curves):
        return any(_reads_input(walk.graph, index) or walk.reads_found(linear) for index, linear in maps.items())
    turned = all(walk.graph.taps[producer.point] in walk.graph.fixed_taps for producer in space.producers)
    if owner is None or not turned:
        return False
    return any(_reads_input(walk.graph, index) and _others(walk, owner, index) for index in maps)


def _reads_input(graph: ChannelGraph, index: int) -> bool:
    """Whether a layer reads the model's input. What comes after a pinned space has fixed coordinates as well, which
    nobody but Canon takes for fixed."""
    pinned = (producer.map for space in graph.spaces if space.pins for producer in space.producers)
    return graph.maps[index].columns is None and all(index <= other for other in pinned)


def _told_by_order(space: Space, curves: Curves) -> bool:
    """Whether nothing but order, scale and known signs are free: each channel is bent before anything reads it."""
    bent = {producer.point: False for producer in space.producers}
    for stage in space.stages:
        bent[stage.output] = any(bent.get(point, False) for point in stage.inputs) or _bends(stage, curves)
    return bool(space.consumers) and all(bent.get(consumer.point, False) for consumer in space.consumers)


def _bends(stage: Stage, curves: Curves) -> bool:
    """Whether a sum of channels comes out as another, and one with another sign as another or with that sign; of an
    unknown function nobody knows."""
    if stage.kind == "slope":
        return True
    if stage.kind != "activation" or stage.function is None or stage.reach != "pointwise":
        return False
    curve = curves.of(stage.function)
    return curve.odd and not curve.linear and (not curve.turning or curve.origin == 0)


def _others(walk: Walk, owner: Traced, index: int) -> bool:
    """Whether the columns of a layer that reads the input lie to each other as the owner's do not."""
    ours, theirs = walk.graph.maps[index], owner.graph.maps[index]
    mine, yours = _columns(walk.tensors[ours.weight], ours), _columns(owner.tensors[theirs.weight], theirs)
    if mine.shape[1] != yours.shape[1] or mine.shape[1] < 3:
        return False
    around = ((mine, yours), (mine - mine.mean(0), yours - yours.mean(0)))
    return max(_correlation(*pair) for pair in around) <= ALIKE


def _columns(weight: Tensor, linear: LinearMap) -> Tensor:
    rows = weight.detach().movedim(linear.row_axis, 0).flatten(1)
    chosen = torch.linspace(0, rows.shape[1] - 1, min(COLUMNS, rows.shape[1])).long()
    return rows[:, chosen.to(rows.device)].double().cpu()


def _correlation(first: Tensor, second: Tensor) -> float:
    """Of the inner products of all pairs of columns."""
    above = torch.triu_indices(first.shape[1], first.shape[1], 1)
    a, b = ((x.T @ x)[above[0], above[1]] for x in (first, second))
    found: Tensor = torch.corrcoef(torch.stack([a, b]))[0, 1]
    return float(found.nan_to_num(1.0))
