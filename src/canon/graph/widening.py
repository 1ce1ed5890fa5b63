"""Models in half precision are run in float32: half precision is for storage, and its rounding would drown much."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.graph.inputs import map_tensors
from canon.graph.tensors import clone_with, modules_of, tensor_names

LAYER_BY_LAYER: Final = 1 << 28
"""Bytes from which on a model is not copied: each layer then gets its numbers in float32 while it runs."""

PIECE: Final = 1 << 19
"""Weights of a linear layer that are widened at a time: what a core's cache holds."""

_MARK: Final = "_canon_runner"


def runner(model: nn.Module) -> nn.Module:
    """The model, or one to run in its place, in float32, where its types are not all float32 or all float64."""
    tensors = tensor_names(model)[0].values()
    found = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    if found in ({torch.float32}, {torch.float64}, set()):
        return model
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) < LAYER_BY_LAYER:
        return copy.deepcopy(model).float()
    result = clone_with(model, {id(tensor): tensor for tensor in tensors})
    result.__dict__[_MARK] = True
    room = _Room()
    for _, module in modules_of(result):
        _widen_while_running(module, room)
    return result


def layer_by_layer(model: nn.Module) -> bool:
    """Whether a model to run gets its numbers layer by layer."""
    return _MARK in model.__dict__


def is_large(model: nn.Module) -> bool:
    """Whether a model in half precision is run layer by layer, and so not often."""
    tensors = tensor_names(model)[0].values()
    halves = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors)
    return halves and sum(tensor.numel() * tensor.element_size() for tensor in tensors) >= LAYER_BY_LAYER


class _Room:
    """Memory that one layer after the other is widened in: fresh pages cost more than the numbers."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """A tensor in float32, and the memory that it lies in."""
        fitting = [index for index, one in enumerate(self._free) if one.numel() >= tensor.numel()]
        if fitting:
            memory = self._free.pop(min(fitting, key=lambda index: self._free[index].numel()))
        else:
            self._free.clear()
            memory = torch.empty(tensor.numel(), dtype=torch.float32, device=tensor.device)
        return memory[: tensor.numel()].view(tensor.shape).copy_(tensor.detach()), memory

    def give_back(self, memory: Tensor) -> None:
        """The layer has returned."""
        self._free.append(memory)


def computes_in(model: nn.Module) -> torch.dtype:
    """The float type of a model's inputs."""
    if layer_by_layer(model):
        return torch.float32
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _widen_while_running(module: Any, room: _Room) -> None:
    """Let a layer have its own tensors in float32 from when it is called until it returns."""
    if isinstance(module, nn.Embedding) and module.max_norm is None:
        module.register_forward_hook(lambda layer, args, result: result.float())  # a few rows, not the table
        return
    if type(module) is nn.Linear and module.weight.dtype != torch.float64:
        module.__dict__["forward"] = partial(_linear, module)
        return
    narrow = [
        (held, name)
        for held in (module._parameters, module._buffers)
        for name, tensor in held.items()
        if tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float32
    ]
    if not narrow:
        return
    kept: list[list[tuple[Tensor, Tensor]]] = []

    def before(layer: Any, args: Any) -> None:
        kept.append([])
        for held, name in narrow:
            tensor = held[name]
            wide, memory = room.take(tensor)
            kept[-1].append((tensor, memory))
            held[name] = nn.Parameter(wide, requires_grad=False) if isinstance(tensor, nn.Parameter) else wide

    def after(layer: Any, args: Any, result: Any) -> None:
        for (held, name), (tensor, memory) in zip(narrow, kept.pop(), strict=True):
            held[name] = tensor
            room.give_back(memory)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, always_call=True)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """What a linear layer makes of its input in float32, some rows of its weight after the other."""
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach().float()
    result = x.new_empty((*x.shape[:-1], weight.shape[0]))
    rows = max(1, PIECE // max(1, weight.shape[1]))
    room = torch.empty((min(rows, weight.shape[0]), weight.shape[1]), dtype=torch.float32, device=weight.device)
    for start in range(0, weight.shape[0], rows):
        piece = weight[start : start + rows]
        part = None if bias is None else bias[start : start + rows]
        wide = room[: len(piece)].copy_(piece)
        result[..., start : start + rows] = torch.nn.functional.linear(x, wide, part)
    return result


def cast(example: Tensor | tuple[Any, ...], model: nn.Module) -> Any:
    """Inputs in the float type that a model computes in."""
    dtype = computes_in(model)
    return map_tensors(lambda x: x.to(dtype) if x.is_floating_point() else x, example)
