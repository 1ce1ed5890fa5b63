"""The merged outgoing effect of a class: `Σ_j α_j·w_j` at every layer that reads it, relative to what is added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from canon.graph import ChannelGraph, Consumer, LinearMap, Space
from canon.recovery.merge import PIECE


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
        columns = columns_of(tensors[graph.maps[consumer.map].weight], graph.maps[consumer.map], consumer, space.width)
        factor = factors.get(consumer.tap, torch.ones(space.width, dtype=torch.float64))[members]
        whole, worst = _remainder(columns, members, factor, local, leaders.numel())
        effect[leaders] = torch.maximum(effect[leaders], whole)
        rows[leaders] = torch.maximum(rows[leaders], worst)
    return Outgoing(effect, rows)


def columns_of(weight: Tensor, linear: LinearMap, consumer: Consumer, width: int) -> Tensor:
    """A layer's columns on the space as `rows x width x rest`; the rows of a grouped layer lie side by side."""
    rows = weight.detach().movedim((linear.row_axis, linear.column_axis), (0, 1))
    rows = rows.reshape(rows.shape[0], rows.shape[1], -1)
    if linear.groups > 1:
        count, inputs, kernel = rows.shape
        rows = rows.view(linear.groups, count // linear.groups, inputs, kernel).transpose(0, 1)
        rows = rows.reshape(count // linear.groups, linear.groups * inputs, kernel)
    part = rows[:, consumer.offset : consumer.offset + width * consumer.repeat]
    return part.reshape(part.shape[0], width, -1)


def _remainder(columns: Tensor, members: Tensor, factor: Tensor, local: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """For each class what remains of its columns, and of the worst row, in float64."""
    device = columns.device
    members, local, factor = members.to(device), local.to(device), factor.to(device)
    left = torch.zeros(count, dtype=torch.float64, device=device)
    mass = torch.zeros(members.numel(), dtype=torch.float64, device=device)
    worst = torch.zeros_like(left)
    step = max(1, PIECE // max(1, members.numel() * columns.shape[2]))
    for start in range(0, columns.shape[0], step):
        piece = columns[start : start + step].index_select(1, members).double() * factor[:, None]
        total = piece.new_zeros(piece.shape[0], count, piece.shape[2]).index_add_(1, local, piece).norm(dim=2)
        size = piece.norm(dim=2)
        by_row = size.new_zeros(total.shape).index_add_(1, local, size)
        worst = torch.maximum(worst, (total / by_row.clamp(min=1e-300)).amax(dim=0))
        left += total.square().sum(dim=0)
        mass += size.square().sum(dim=0)
    summed = torch.zeros_like(left).index_add_(0, local, mass.sqrt())
    return (left.sqrt() / summed.clamp(min=1e-300)).cpu(), worst.cpu()
