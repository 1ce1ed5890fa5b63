"""A model's tensors by name, and copies of a model that take other tensors in their place."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def tensor_names(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All parameters and buffers by first name, and every name's first name."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    named: list[tuple[str, Tensor]] = [*model.named_parameters(remove_duplicate=False)]
    named += model.named_buffers(remove_duplicate=False)
    for name, tensor in named:
        aliases[name] = first.setdefault(id(tensor), name)
        tensors.setdefault(aliases[name], tensor)
    return tensors, aliases


def unsaved_names(model: nn.Module) -> frozenset[str]:
    """Buffers that a checkpoint leaves out: rewritten, they would come back as they were."""
    return frozenset(
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
    )


def clone_with(model: nn.Module, tensors: dict[int, Tensor]) -> nn.Module:
    """A copy of a model that shares nothing but gets the given tensors in place of those with these ids.

    `copy.deepcopy` asks its memo first, so no weight is ever copied.
    """
    memo: dict[int, Any] = dict(tensors)
    result: nn.Module = copy.deepcopy(model, memo)
    return result


def meta_clone(model: nn.Module) -> nn.Module:
    """The model with every tensor on the meta device."""
    replaced: dict[int, Tensor] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        meta = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, nn.Parameter):
            meta = nn.Parameter(meta, requires_grad=False)
        replaced[id(tensor)] = meta
    return clone_with(model, replaced)
