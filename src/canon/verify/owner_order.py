"""A suspect's experts, and inner channels of Mamba layers, in the owner's order, known by rows that move with them.

Whoever moves experts must move the rows of the router with them. Once what these rows read is in the owner's order,
they say which expert is which, by a model as well as by the few numbers that a key keeps of them. Moving experts
changes no output, so nothing is lost where the rows say nothing; then all stay where they are.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any, Final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from canon.graph.bundles import Bundle, free_orders
from canon.graph.inputs import fitting
from canon.rewrite.bundles import move_bundles
from canon.verify.key import LayoutKey
from canon.verify.layout import Layout, coordinates, survey
from canon.verify.matching import match
from canon.verify.projection import project
from canon.verify.side import Side, movable
from canon.verify.traced import Traced

ROWS_ALIKE: Final = 0.8
"""Least cosine of rows with the owner's, in the middle, from which on they say what belongs where."""


def in_owner_order(
    model: nn.Module, reference: nn.Module | Layout | LayoutKey, example: Tensor | tuple[Any, ...]
) -> nn.Module:
    """The model, or a copy with things where the owner's stand.

    Args:
        model: The suspect. It is not changed.
        reference: The owner's model, or what a key keeps of it.
        example: An input tensor or tuple of inputs.
    """
    free = free_orders(model)
    if not free:
        return model
    if isinstance(reference, nn.Module):
        layout = survey(Traced.of(reference, fitting(example, reference)))
    else:
        layout = reference.layout if isinstance(reference, LayoutKey) else reference
    rows = dict[Bundle, tuple[Tensor, Tensor]]()
    placed(Traced.of(model, example), layout, free, rows)
    orders = {one: _order(*pair) for one, pair in rows.items()}
    moved = {one: order for one, order in orders.items() if not torch.equal(order, torch.arange(len(order)))}
    return move_bundles(model, moved) if moved else model


def placed(
    traced: Traced,
    layout: Layout,
    free: Sequence[Bundle] = (),
    rows: MutableMapping[Bundle, tuple[Tensor, Tensor]] | None = None,
) -> Side:
    """A suspect whose spaces have the owner's coordinates, as far as the steps that describe them first tell them.

    A space is put in order by the first step that describes it: later ones read what may have been moved.

    Args:
        traced: The suspect, whatever its widths.
        layout: The owner's.
        free: What may change places beside channels.
        rows: Gets what is known of the rows of both models that tell these apart.
    """
    graph, done = traced.graph, set[int]()
    side = Side(graph, traced.tensors, seed=layout.seed)
    wanted = {linear.rows[0].space: one for linear in graph.maps for one in free if one.rows == linear.weight}
    for index, step in enumerate(layout.steps):
        space = graph.spaces[step.space] if step.space < len(graph.spaces) else None
        if space is None or space.width != len(step.label) or not set(step.maps) <= set(side.available(space)):
            continue
        first = movable(space) and space.id not in done
        if not first and space.id not in wanted:
            continue
        told = side.describe(space, step.maps)
        features = project(told.features, layout.numbers, seed=layout.seed + index)
        if features.shape != step.features.shape:
            continue
        if first:
            paired = match(features, step.features, step.label, step.label, "nearest").channel
            named = coordinates(paired, step.leader, told.scales, step.scales, told.constants)
            side.place(space, named, frozenset(named.factors))
            done.add(space.id)
        one = wanted.get(space.id)
        if one is not None and one.count == space.width and rows is not None:
            rows[one] = (features, step.features)
    return side


def _order(ours: Tensor, theirs: Tensor) -> Tensor:
    """What of the suspect's belongs at each place; where rows are like none of the owner's, all as it stands."""
    cosine = torch.nn.functional.normalize(theirs, dim=1) @ torch.nn.functional.normalize(ours, dim=1).T
    _, columns = linear_sum_assignment(-cosine.cpu().numpy())
    order = torch.from_numpy(columns).long()
    if float(cosine[torch.arange(len(order)), order].median()) < ROWS_ALIKE:
        return torch.arange(len(order))
    return order
