"""Experts, and inner channels of Mamba layers, in another order: the function stays."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from canon.graph.bundles import Bundle
from canon.graph.mapped import results
from canon.graph.tensors import tensor_names
from canon.rewrite.surgery import replace_tensors


def move_bundles(model: nn.Module, orders: Mapping[Bundle, Tensor]) -> nn.Module:
    """A copy of a model in which things have changed places.

    Args:
        model: It is not changed.
        orders: For all that changes places together: what shall stand at each place.
    """
    tensors, _ = tensor_names(model)
    changed = results(tensors)
    for free, order in orders.items():
        for name, _, _ in free.axes:
            changed[name] = free.moved(name, tensors[name].detach(), order)
    return replace_tensors(model, changed)
