"""Put rewritten tensors into a copy of the model: the only place where modules are changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from canon.graph import ChannelGraph
from canon.graph.mapped import duplicate
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
    tensors, _ = tensor_names(model)
    with torch.no_grad():
        changed = rewrite_tensors(tensors, graph, rewrites)
    return replace_tensors(model, changed)


def replace_tensors(model: nn.Module, changed: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a model with some tensors replaced, by first name, and sizes brought up to date."""
    tensors, _ = tensor_names(model)
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


def resize_kernels(model: nn.Module, rings: Mapping[str, int]) -> None:
    """After kernels grew (or, with a negative number, shrank) by rings, bring their layers' attributes up to date.

    Args:
        model: A model that the caller owns; it is changed.
        rings: By weight name, how many entries were added on every side.
    """
    for name, count in rings.items():
        layer: Any = model.get_submodule(name.rpartition(".")[0])
        layer.kernel_size = tuple(layer.weight.shape[2:])
        layer.padding = tuple(p + count for p in layer.padding)
        # Kept by torch for padding modes other than zeros; updated so that no attribute disagrees.
        layer._reversed_padding_repeated_twice = tuple(p for p in reversed(layer.padding) for _ in range(2))
