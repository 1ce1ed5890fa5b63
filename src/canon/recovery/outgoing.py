"""The merged outgoing effect of a class: `Σ_j α_j·w_j` at every layer that reads it, relative to what is added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from canon.graph import ChannelGraph, Space
from canon.rewrite.axes import columns_of
from canon.rewrite.weights import PIECE
from canon.transforms import ChannelTransform


@dataclass(frozen=True, eq=False)
class Outgoing:
    """How much of a class remains when its columns are added up, by the channel that leads it."""

    effect: Tensor
    """`‖Σ α_j w_j‖ / Σ ‖α_j w_j‖` over whole columns, the largest over all layers that read the space."""

    rows: Tensor
    """The same row by row, the largest over rows and layers."""


def outgoing(
    space: Space, graph: ChannelGraph, tensors: Mapping[str, Tensor], leader: Tensor, factors: Mapping[int, Tensor]
) -> Outgoing:
    """Add up each class's columns at every layer that reads the space.

    Args:
        space: The space.
        graph: The graph it belongs to.
        tensors: The model's tensors by name.
        leader: The channel that leads each channel's class.
        factors: By tap: channel = factor x leader.
    """
    effect = torch.zeros(space.width, dtype=torch.float64)
    rows = torch.zeros_like(effect)
    members = torch.nonzero(torch.bincount(leader, minlength=space.width)[leader] > 1).flatten()
    if not members.numel():
        return Outgoing(effect, rows)
    leaders, local = torch.unique(leader[members], return_inverse=True)
    for consumer in space.consumers:
        linear = graph.maps[consumer.map]
        columns = columns_of(tensors[linear.weight], linear, consumer.offset, space.width * consumer.repeat)
        factor = factors.get(consumer.tap, torch.ones(space.width, dtype=torch.float64))[members]
        classes = ChannelTransform.of(space.width, leaders.numel(), members, local, factor)
        whole, worst = _remainder(columns.reshape(columns.shape[0], space.width, -1), classes.to(columns.device))
        effect[leaders] = torch.maximum(effect[leaders], whole)
        rows[leaders] = torch.maximum(rows[leaders], worst)
    return Outgoing(effect, rows)


def _remainder(columns: Tensor, classes: ChannelTransform) -> tuple[Tensor, Tensor]:
    """For each class what remains of its columns, and of the worst row, in float64."""
    magnitudes = replace(classes, values=classes.values.abs())
    left, worst = torch.zeros(2, classes.after, dtype=torch.float64, device=columns.device)
    mass = torch.zeros(classes.before, dtype=torch.float64, device=columns.device)
    for piece in columns.split(max(1, PIECE // max(1, columns[0].numel()))):
        size = piece.double().norm(dim=2)
        total, by_row = classes.apply(piece.double(), 1).norm(dim=2), magnitudes.apply(size, 1)
        worst = torch.maximum(worst, (total / by_row.clamp(min=1e-300)).amax(dim=0))
        left += total.square().sum(dim=0)
        mass += size.square().sum(dim=0)
    summed = magnitudes.apply(mass.sqrt(), 0)
    return (left.sqrt() / summed.clamp(min=1e-300)).cpu(), worst.cpu()
