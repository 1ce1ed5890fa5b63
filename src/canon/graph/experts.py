"""Experts whose weights lie in one tensor, taken apart into one tensor for each.

transformers keeps the weights of all experts of a layer in tensors of three axes. Every expert has hidden channels of
its own, so a graph knows `experts.down_proj[2]` and not `experts.down_proj`; the experts of a layer must stay equally
wide. On the clone that is traced the tensors are parameters of their own, and all experts are asked for every token:
those that the router did not choose count for nothing.

Experts are known by transformers' own dispatcher, which runs them all by one function. What it would run otherwise
(another implementation, gates and ups that lie in turn, a tensor that two layers share) stays one tensor, which is
held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.graph.orders import Orders, side_by_side
from canon.graph.tensors import modules_of, tensor_names

_DISPATCHER: Final = "transformers.integrations.moe"
_IMPLEMENTATIONS: Final = ("grouped_mm", "batched_mm")


def part_name(name: str, expert: int) -> str:
    """The name of one expert's part of a tensor."""
    return f"{name}[{expert}]"


def whole_name(part: str) -> str | None:
    """The name of the tensor that a part belongs to; None for a tensor of its own.

    >>> whole_name("experts.down_proj[2]"), whole_name("fc.weight")
    ('experts.down_proj', None)
    """
    return part.rpartition("[")[0] if part.endswith("]") else None


def expert_tensors(model: nn.Module) -> dict[str, int]:
    """The tensors that are taken apart, by first name, with the number of experts in each."""
    found: dict[str, int] = {}
    uses = None
    for path, module in modules_of(model):
        names = _tensors_of(module)
        if not names:
            continue
        if uses is None:
            uses = Counter(id(t) for _, owner in modules_of(model) for t in owner._parameters.values())
        if all(uses[id(module._parameters[name])] == 1 for name in names):
            found |= {f"{path}.{name}" if path else name: int(module.num_experts) for name in names}  # type: ignore[arg-type]
    return found


def _tensors_of(module: nn.Module) -> tuple[str, ...]:
    """The names of a module's tensors with one part for each expert, if it is such a module."""
    kind = type(module)
    if getattr(kind.forward, "__globals__", {}).get("__name__") != _DISPATCHER:
        return ()
    given: Any = module
    first = "gate_up_proj" if given.has_gate else "up_proj"
    names = (first, "down_proj", *((f"{first}_bias", "down_proj_bias") if given.has_bias else ()))
    plain = (
        getattr(given.config, "_experts_implementation", None) in _IMPLEMENTATIONS
        and (given.is_concatenated or not given.has_gate)
        and not given._is_expert_parallel
        and all(isinstance(module._parameters.get(name), Tensor) for name in names)
        and all(len(given._parameters[name]) == given.num_experts for name in names)
        and all(given._parameters[name].ndim == (2 if name.endswith("_bias") else 3) for name in names)
    )
    return names if plain else ()


def take_apart(clone: nn.Module) -> nn.Module:
    """Give every expert of a clone, which the caller owns, tensors of its own; returns the clone."""
    apart = expert_tensors(clone)
    for name, experts in apart.items():
        path, _, key = name.rpartition(".")
        module = clone.get_submodule(path)
        tensor = module._parameters.pop(key)
        assert tensor is not None, "found above"
        for expert in range(experts):
            part = nn.Parameter(tensor.detach()[expert], requires_grad=False)
            module._parameters[part_name(key, expert)] = part
    for path in {name.rpartition(".")[0] for name in apart}:
        module = clone.get_submodule(path)
        kind: Any = type(module)
        module.__class__ = _opened(kind)
    return clone


@lru_cache(maxsize=64)
def _opened(kind: Any) -> Any:
    """A class whose forward pass asks every expert by itself; one for each class, so that blocks stay alike."""
    return type(kind.__name__, (kind,), {"forward": _ask_all, "__module__": kind.__module__})


def _ask_all(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    total = None
    first = "gate_up_proj" if self.has_gate else "up_proj"
    for expert in range(self.num_experts):
        wide = _linear(self, first, expert, hidden_states)
        made = _linear(self, "down_proj", expert, self._apply_gate(wide) if self.has_gate else self.act_fn(wide))
        if self.has_post_expert_norm:
            made = self.post_expert_norm(made)
        share = (top_k_weights * (top_k_index == expert)).sum(-1, keepdim=True)
        total = made * share if total is None else total + made * share
    assert total is not None, "there is at least one expert"
    return total.to(hidden_states.dtype)


def _linear(module: Any, name: str, expert: int, x: Tensor) -> Tensor:
    weight = module._parameters[part_name(name, expert)]
    bias = module._parameters.get(part_name(f"{name}_bias", expert))
    if not module.is_transposed:
        return functional.linear(x, weight, bias)
    product: Tensor = x @ weight
    return product if bias is None else product + bias


def channel_tensors(model: nn.Module, orders: Orders | None = None) -> dict[str, Tensor]:
    """All parameters and buffers as a channel graph knows them, by first name: those of experts one by one.

    Args:
        model: The model.
        orders: Those of its graph; without, tensors behind a channel shuffle come as the model has them.
    """
    tensors, apart = tensor_names(model)[0], expert_tensors(model)
    if not apart:
        return side_by_side(tensors, orders) if orders else tensors
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name in apart:
            found |= {part_name(name, expert): tensor.detach()[expert] for expert in range(apart[name])}
        else:
            found[name] = tensor
    return side_by_side(found, orders) if orders else found


def put_together(changed: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Changed tensors as a model stores them: parts of experts are put side by side again.

    Args:
        changed: By first name, as a channel graph knows them.
        tensors: The model's tensors as they were, by first name.
    """
    wholes = {whole_name(name): None for name in changed if name not in tensors}
    found = {name: tensor for name, tensor in changed.items() if name in tensors}
    for name in wholes:
        assert name is not None, "a part of no tensor"
        own = tensors[name].detach()
        parts = [changed.get(part_name(name, expert), own[expert]) for expert in range(len(own))]
        assert len({part.shape for part in parts}) == 1, f"experts of {name} are no longer equally wide"
        found[name] = torch.stack(parts)
    return found


def named_apart(names: Iterable[str], model: nn.Module) -> tuple[str, ...]:
    """Names of tensors as a channel graph knows them."""
    apart = expert_tensors(model)
    parts = ([part_name(name, expert) for expert in range(apart[name])] if name in apart else [name] for name in names)
    return tuple(one for found in parts for one in found)
