"""Which channels stand for their class when columns are added up."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from canon.graph import Space
from canon.recovery.partition import Classes


def choose_slots(classes: Classes, space: Space) -> tuple[Tensor, Tensor]:
    """The channels that lead a class, block by block, and which of them only fill up.

    Blocks of a grouped space must be equally wide even before the dead are gone, so the shorter ones are filled up with
    channels that nothing is merged into: their columns are zero, and they die.
    """
    everyone = torch.arange(space.width)
    leads = (classes.leader == everyone) & ~classes.null
    if space.groups == 1:
        slots = everyone[leads]
        return slots, torch.zeros(slots.numel(), dtype=torch.bool)
    by_block = leads.view(space.groups, -1)
    count = int(by_block.sum(dim=1).max())
    # Leaders first, each kind in order; then the chosen slots in channel order again.
    first = torch.argsort(~by_block, dim=1, stable=True)[:, :count].sort(dim=1).values
    slots = (first + torch.arange(space.groups)[:, None] * by_block.shape[1]).flatten()
    return slots, ~leads[slots]


def unmerge(classes: Classes, protected: Tensor) -> Classes:
    """Protected channels lead a class of their own. So do all channels of a space that holds nothing but zeros."""
    everyone = torch.arange(protected.numel())
    # The leader of a clique may stay with its clique: on its own, what cancels with the others would not.
    protected = protected & ((classes.leader != everyone) | classes.null | classes.constant)
    if bool(classes.null.all()):
        protected = torch.ones_like(protected)  # a layer cannot lose all its channels
    if not bool(protected.any()):
        return classes
    leader = torch.where(protected, everyone, classes.leader)
    # A protected leader's members follow the next member of the old class.
    orphan = protected[leader] & ~protected
    if bool(orphan.any()):
        heads = torch.full_like(leader, protected.numel())
        heads.scatter_reduce_(0, classes.leader[orphan], everyone[orphan], "amin")
        leader = torch.where(orphan, heads[classes.leader], leader)
    factors = {
        tap: torch.where(factor[leader] != 0, factor / factor[leader], factor)
        for tap, factor in classes.factors.items()
    }
    return replace(
        classes, leader=leader, null=classes.null & ~protected,
        constant=classes.constant & ~protected, factors=factors,
    )  # fmt: skip
