"""Layers that do nothing but change places and scales of channels: they become identities, which can be left out.

A layer that was put in and does nothing looks like this once its channels were shuffled and scaled: every row and
every column holds one number. Its output takes the order of its input, or its input that of its output where the
output must stay; scales go to the side that lets them pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from canon.graph import LinearMap, Segment, Space
from canon.recovery.facts import Facts, Subject
from canon.recovery.proposal import Proposal, SpaceChange
from canon.rewrite.axes import by_row
from canon.rewrite.spec import SpaceRewrite
from canon.rewrite.tensors import written
from canon.transforms import ChannelTransform


def straighten(subject: Subject, facts: Facts) -> Proposal | None:
    """Identities of layers that only move and scale channels."""
    changes: list[SpaceChange] = []
    for linear in subject.graph.maps:
        for change in _straight(subject, linear):
            changes.append(change)
            subject = subject.with_tensors(change.tensors)
    return Proposal(tuple(changes)) if changes else None


def _straight(subject: Subject, linear: LinearMap) -> list[SpaceChange]:
    """What makes a layer the identity: the order of one of its sides, and the scale of one."""
    if linear.groups > 1 or len(linear.rows) != 1 or len(linear.columns or ()) != 1:
        return []
    found = _places(subject, linear)
    if found is None:
        return []
    column, scale = found
    sides = [linear.rows[0], *(linear.columns or ())]
    width, free = column.numel(), {space.id: space for space in subject.graph.free}
    if sides[0].space == sides[1].space or any(side.repeat > 1 or side.length != width for side in sides):
        return []
    everyone, ones = torch.arange(width), torch.ones(width, dtype=torch.float64)
    orders = (torch.argsort(column), column)  # of the output, and of the input
    moving = None if torch.equal(column, everyone) else _first([side.space in free for side in sides])
    scaling = None if _unit(scale) else _first([side.space in free and _passes(subject, side, scale) for side in sides])
    if (moving is None and not torch.equal(column, everyone)) or (scaling is None and not _unit(scale)):
        return []  # neither side lets it pass
    if moving is None and scaling is None:
        return []
    # Scales are told by row; where channels of the output move too, by the row that comes to stand there.
    changes = []
    for number, side in enumerate(sides):
        order = orders[number] if moving == number else everyone
        gain = ones
        if scaling == number:
            by_place = scale[orders[0]] if moving == 0 else scale
            gain = 1 / by_place if number == 0 else by_place
        if moving == number or scaling == number:
            changes.append(_change(subject, free[side.space], side.tap, order, gain))
            subject = subject.with_tensors(changes[-1].tensors)
    return changes


def _places(subject: Subject, linear: LinearMap) -> tuple[Tensor, Tensor] | None:
    """By row: the column that it takes, and how much of it; None where some row or column holds anything else."""
    weight = by_row(subject.tensors[linear.weight], linear)
    count, width, _ = weight.shape
    if count != width or int(torch.count_nonzero(weight[0])) != 1 or int(torch.count_nonzero(weight)) != count:
        return None
    if linear.bias is not None and bool(subject.tensors[linear.bias].any()):
        return None
    row, column, place = torch.nonzero(weight, as_tuple=True)
    once = torch.equal(row, torch.arange(count, device=row.device)) and column.unique().numel() == width
    if not once or place.unique().numel() != 1:
        return None
    return column.cpu(), weight[row, column, place].double().cpu()


def _first(marks: list[bool]) -> int | None:
    return marks.index(True) if any(marks) else None


def _unit(scale: Tensor) -> bool:
    return bool(((scale - 1).abs() <= 1e-6).all())


def _passes(subject: Subject, side: Segment, scale: Tensor) -> bool:
    graph = subject.graph
    return side.tap not in graph.fixed_taps and (bool((scale > 0).all()) or side.tap in graph.signed_taps)


def _change(subject: Subject, space: Space, tap: int, order: Tensor, gain: Tensor) -> SpaceChange:
    """Channels in another order, and those at one tap times a gain."""
    back = torch.ones_like(gain)
    back[order] = 1 / gain
    transform = ChannelTransform.permutation(order)
    gains, factors = ({}, {}) if _unit(gain) else ({tap: gain}, {tap: back})
    rewrite = SpaceRewrite(space.width, order, transform, gains, factors)
    tensors = dict(written(subject.tensors, subject.graph, {space.id: rewrite}))
    return SpaceChange(space.id, torch.empty(0, dtype=torch.int64), tensors, order)
