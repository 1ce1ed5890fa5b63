"""Tensors behind a channel shuffle, with their channels side by side, and back.

A layer that reads shuffled channels has their columns in turn: one of the first group, one of the second. A graph
counts them side by side, and so do all who compute with it; only where tensors come out of a model and go back into it
are they put in order. Spaces behind a shuffle keep their widths, so the order is always the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from canon.graph.tensors import tensor_names

Orders = Mapping[tuple[str, int], tuple[int, ...]]
"""`ChannelGraph.orders`."""


def side_by_side(tensors: Mapping[str, Tensor], orders: Orders) -> dict[str, Tensor]:
    """A model's tensors as its graph counts them; those behind a shuffle are copies."""
    found = dict(tensors)
    for (name, axis), order in orders.items():
        if name in found:
            found[name] = _chosen(found[name], axis, torch.tensor(order))
    return found


def in_turn(tensors: Mapping[str, Tensor], orders: Orders) -> dict[str, Tensor]:
    """Tensors as a graph counts them, as the model has them."""
    found = dict(tensors)
    for (name, axis), order in orders.items():
        if name in found:
            found[name] = _chosen(found[name], axis, torch.tensor(order).argsort())
    return found


def write_back(model: nn.Module, tensors: Mapping[str, Tensor], orders: Orders) -> None:
    """Put copies that were changed into the model that they were taken from, which the caller owns."""
    own = tensor_names(model)[0]
    changed = in_turn({name: tensors[name] for name, _ in orders if name in own}, orders)
    for name, tensor in changed.items():
        own[name].data.copy_(tensor.data)


def _chosen(tensor: Tensor, axis: int, index: Tensor) -> Tensor:
    made = tensor.detach().index_select(axis, index.to(tensor.device))
    return nn.Parameter(made, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
