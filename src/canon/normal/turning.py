"""Channels that stand in another order because parts of a concatenation do: followed to the layers that read them."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final

import torch
from torch import Tensor

from canon.normal.chains import Written
from canon.normal.items import Item
from canon.normal.matching import Match
from canon.normal.nodes import Affine, Linear, Node

Order = Tensor | None
"""By channel of the owner's program: the suspect's; None: the same order."""

BY_CHANNEL: Final = frozenset(
    "relu clamp silu sigmoid tanh gelu hardswish hardsigmoid leaky_relu elu celu selu mish softplus softsign abs neg "
    "max_pool avg_pool adaptive_avg_pool adaptive_max_pool exp log sqrt rsqrt square erf pad positions".split()
) | {"mean of positions"}


class Tangled(Exception):
    """Channels in another order reach an operation that cannot follow."""


def turn(match: Match, items: list[Item], values: dict[Node, Written]) -> dict[Node, Written]:
    """Numbers of the owner's layers with their channels in the order that the owner's program has.

    Raises:
        Tangled: They cannot be.
    """
    if all(order == sorted(order) for item, order in match.orders.items() if item.node.kind == "cat"):
        return values
    found = dict(values)
    orders: dict[Item, Order] = {}
    for item in items:
        if item not in match.pairs:
            continue
        inputs = [orders.get(source) for source in item.inputs]
        kind = item.node.kind
        if kind in ("linear", "affine"):
            order = inputs[0]
            for member in item.members:
                order, found[member] = _through(order, found.get(member), member)
            orders[item] = order
        elif kind == "cat" and item.node.label == 1:
            orders[item] = _joined(match, item, inputs)
        elif kind in ("sum", "product", "cat"):
            orders[item] = _same(inputs)
        else:
            orders[item] = _called(match.pairs[item].node, inputs)
    return found


def _same(orders: list[Order]) -> Order:
    first = orders[0]
    for other in orders[1:]:
        if (first is None) != (other is None) or (first is not None and not torch.equal(first, other)):  # type: ignore[arg-type]
            raise Tangled
    return first


def _called(node: Node, inputs: list[Order]) -> Order:
    if all(order is None for order in inputs):
        return None
    name = node.label[0] if isinstance(node.label, tuple) else None
    if len(inputs) != 1 or inputs[0] is None:
        raise Tangled
    if name == "flatten" and node.label == ("flatten", 1) and isinstance(node.inputs[0].shape, tuple):
        count = prod(node.inputs[0].shape[2:])
        return (inputs[0][:, None] * count + torch.arange(count)).flatten()
    if name in BY_CHANNEL:
        return inputs[0]
    raise Tangled


def _joined(match: Match, item: Item, inputs: list[Order]) -> Order:
    other = match.pairs[item]
    shapes = [source.node.shape for source in other.inputs]
    if not all(isinstance(shape, tuple) for shape in shapes):
        raise Tangled
    widths = [int(shape[1]) for shape in shapes]
    starts = [sum(widths[:i]) for i in range(len(widths))]
    parts = []
    for order, place in zip(inputs, match.orders[item], strict=True):
        inside = torch.arange(widths[place]) if order is None else order
        parts.append(starts[place] + inside)
    whole = torch.cat(parts)
    return None if torch.equal(whole, torch.arange(len(whole))) else whole


def _through(order: Order, value: Written, member: Node) -> tuple[Order, Written]:
    if order is None or value is None:
        return order, value
    if isinstance(value, Affine):
        scale = value.scale if value.scale.ndim == 0 else value.scale[order]
        shift = value.shift if value.shift.ndim == 0 else value.shift[order]
        own = None
        if value.norm is not None:
            own = {k: v[order] if isinstance(v, Tensor) else v for k, v in value.norm.items()}
        return order, replace(value, scale=scale, shift=shift, norm=own)
    assert isinstance(value, Linear), "all that there is"
    columns = value.weight.shape[1] * value.groups
    if value.transposed is not None or len(order) != columns:
        raise Tangled
    if value.groups == 1:
        return None, value.with_numbers(value.weight.detach()[:, order], value.bias)
    if value.groups == columns == value.weight.shape[0]:
        bias = None if value.bias is None else value.bias.detach()[order]
        return order, value.with_numbers(value.weight.detach()[order], bias)
    raise Tangled
