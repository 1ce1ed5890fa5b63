"""Entries of kernels that only ever meet padding at one input size: there they do nothing, and may hold anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from canon.graph.tensors import clone_with
from canon.normal.lower import CONVOLUTIONS, program_graph, shapes_of
from canon.normal.nodes import NotNormal


def idle_taps(model: nn.Module, example: Any) -> dict[str, Tensor]:
    """By convolution: a mask over its kernel, True where an entry meets nothing but padding zeros.

    Args:
        model: In evaluation mode.
        example: An input tensor or tuple of inputs of the size that counts.
    """
    try:
        graph = program_graph(model)
    except NotNormal:
        return {}
    shapes = shapes_of(model, graph, example)
    calls: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == "call_module" and type(model.get_submodule(str(node.target))) in CONVOLUTIONS:
            calls[str(node.target)].append((shapes.get(node.args[0]), shapes.get(node)))
        elif node.op == "get_attr":
            calls[str(node.target).rpartition(".")[0]].append((None, None))  # used in ways that are not seen here
    found: dict[str, Tensor] = {}
    for name, sizes in calls.items():
        layer: Any = model.get_submodule(name) if name else model
        known = all(isinstance(a, tuple) and isinstance(b, tuple) for a, b in sizes)
        if type(layer) not in CONVOLUTIONS or not known or layer.padding_mode != "zeros" or layer.padding == "same":
            continue
        idle = torch.stack([_idle(layer, before[2:], after[2:]) for before, after in sizes]).all(dim=0)
        if bool(idle.any()):
            found[name] = idle
    return found


def _idle(layer: Any, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """An entry is idle if its taps along one axis never fall on the input."""
    idle = torch.zeros(tuple(layer.kernel_size), dtype=torch.bool)
    padding = (0,) * len(before) if layer.padding == "valid" else layer.padding
    for axis, (size, length) in enumerate(zip(before, after, strict=True)):
        starts = torch.arange(length) * layer.stride[axis] - padding[axis]
        taps = torch.arange(layer.kernel_size[axis]) * layer.dilation[axis]
        places = starts[:, None] + taps
        never = ~((places >= 0) & (places < size)).any(dim=0)
        shape = [1] * idle.ndim
        shape[axis] = -1
        idle |= never.reshape(shape)
    return idle


def without_idle_taps(model: nn.Module, idle: dict[str, Tensor]) -> nn.Module:
    """A copy of a model with zeros where its kernels do nothing; it shares all other tensors."""
    replaced: dict[int, Tensor] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    for name, mask in idle.items():
        weight: Any = model.get_submodule(name).weight
        data = torch.where(mask.to(weight.device), 0, weight.detach()).to(weight.dtype)
        replaced[id(weight)] = nn.Parameter(data, requires_grad=weight.requires_grad)
    return clone_with(model, replaced)
