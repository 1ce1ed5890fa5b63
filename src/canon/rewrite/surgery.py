"""Put rewritten tensors into a copy of the model: the only place where modules are changed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from canon.graph import ChannelGraph
from canon.graph.experts import channel_tensors, put_together
from canon.graph.mapped import duplicate
from canon.graph.orders import Orders, in_turn
from canon.graph.sizes import update_sizes
from canon.graph.tensors import clone_with, modules_of, tensor_names
from canon.rewrite.tensors import Rewrites, rewrite_tensors


def rewrite(model: nn.Module, graph: ChannelGraph, rewrites: Rewrites) -> nn.Module:
    """A new, ordinary model with the rewrites applied. The given model is not changed and shares no tensor with it.

    Args:
        model: The model that `graph` was traced from.
        graph: Its channel graph.
        rewrites: What to do, by space id.
    """
    with torch.no_grad():
        changed = rewrite_tensors(channel_tensors(model, graph.orders), graph, rewrites)
    return replace_tensors(model, changed, graph.orders)


def replace_tensors(model: nn.Module, changed: Mapping[str, Tensor], orders: Orders | None = None) -> nn.Module:
    """A copy of a model with some tensors replaced, by first name, and sizes brought up to date.

    Args:
        model: The model.
        changed: New tensors.
        orders: Those of the graph that the new tensors are counted by; None: they are as the model has them.
    """
    tensors, _ = tensor_names(model)
    changed = put_together(in_turn(changed, orders) if orders else changed, model)
    replaced: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        data = changed[name] if name in changed else duplicate(tensor)
        data = data.contiguous()
        if isinstance(tensor, nn.Parameter):
            data = nn.Parameter(data, requires_grad=tensor.requires_grad)
        replaced[id(tensor)] = data
    result = clone_with(model, replaced)
    for _, module in modules_of(result):
        update_sizes(module)
    return result
