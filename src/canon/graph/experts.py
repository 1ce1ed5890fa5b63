"""Experts whose weights lie in one tensor, taken apart into one tensor for each.

transformers keeps the weights of all experts of a layer in tensors of three axes. Every expert has hidden channels of
its own, so a graph knows `experts.down_proj[2]` and not `experts.down_proj`; the experts of a layer must stay equally
wide. On the clone that is traced the tensors are parameters of their own, and all experts are asked for every token:
those that the router did not choose count for nothing.

Where gates and ups lie in turn, they are taken apart as well (`experts.gate_up_proj[2:0]`), if the layer asks for them
by every second number and nothing else, which is tried.

Experts are known by transformers' own dispatcher, which runs them all by one function. What it would run otherwise
(another implementation, a tensor that two layers share) stays one tensor, which is held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.graph.orders import Orders, side_by_side
from canon.graph.tensors import modules_of, tensor_names

_DISPATCHER: Final = "transformers.integrations.moe"
_IMPLEMENTATIONS: Final = ("grouped_mm", "batched_mm")


@dataclass(frozen=True)
class Parts:
    """How a tensor is taken apart."""

    experts: int
    halves: int = 1
    """2 where gates and ups lie in turn on the last axis."""

    def names(self, whole: str) -> list[str]:
        """The names of all parts."""
        return [part_name(whole, *place) for place in self._places]

    def views(self, whole: Tensor) -> list[Tensor]:
        """All parts, where they lie."""
        whole = whole.detach()
        return [whole[place[0]] if len(place) == 1 else whole[place[0]][..., place[1] :: 2] for place in self._places]

    def together(self, parts: Sequence[Tensor]) -> Tensor:
        """All parts as one tensor."""
        whole = torch.stack([*parts])
        return whole if self.halves == 1 else whole.unflatten(0, (-1, 2)).movedim(1, -1).flatten(-2)

    @property
    def _places(self) -> list[tuple[int, ...]]:
        if self.halves == 1:
            return [(expert,) for expert in range(self.experts)]
        return [(expert, half) for expert in range(self.experts) for half in range(self.halves)]


def part_name(name: str, *place: int) -> str:
    """The name of a part of a tensor: its expert, and its half where it has two."""
    return f"{name}[{':'.join(map(str, place))}]"


def whole_name(part: str) -> str | None:
    """The name of the tensor that a part belongs to; None for a tensor of its own.

    >>> whole_name("experts.down_proj[2]"), whole_name("fc.weight")
    ('experts.down_proj', None)
    """
    return part.rpartition("[")[0] if part.endswith("]") else None


def expert_tensors(model: nn.Module) -> dict[str, Parts]:
    """The tensors that are taken apart, by first name."""
    found: dict[str, Parts] = {}
    uses = None
    for path, module in modules_of(model):
        names = _tensors_of(module)
        if not names:
            continue
        if uses is None:
            uses = Counter(id(t) for _, owner in modules_of(model) for t in owner._parameters.values())
        if all(uses[id(module._parameters[name])] == 1 for name in names):
            given: Any = module
            halves = 2 if given.has_gate and not given.is_concatenated else 1
            for name in names:
                parts = Parts(given.num_experts, halves if name.startswith("gate_up") else 1)
                found[f"{path}.{name}" if path else name] = parts
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
        and (given.is_concatenated or not given.has_gate or (given.is_transposed and _asks_in_turn(given)))
        and not given._is_expert_parallel
        and all(isinstance(module._parameters.get(name), Tensor) for name in names)
        and all(len(given._parameters[name]) == given.num_experts for name in names)
        and all(given._parameters[name].ndim == (2 if name.endswith("_bias") else 3) for name in names)
    )
    return names if plain else ()


class _InTurn:
    """Gates and ups as a layer asks for them that has them in turn."""

    def __init__(self, gate: Tensor, up: Tensor) -> None:
        self._halves = gate, up

    def __getitem__(self, index: Any) -> Tensor:
        rest, every = index
        if rest is not Ellipsis or (every.stop, every.step) != (None, 2):
            raise IndexError(index)
        return self._halves[every.start or 0]


def _asks_in_turn(module: Any) -> bool:
    """Whether a layer makes the same of gates and ups in turn and of such that are taken apart."""
    pairs = torch.linspace(-9, 9, 24, device="cpu").view(3, 8)
    try:
        found = module._apply_gate(_InTurn(pairs[..., ::2], pairs[..., 1::2]))
    except (AttributeError, IndexError, TypeError, ValueError):
        return False
    return torch.equal(found, module._apply_gate(pairs))


def take_apart(clone: nn.Module) -> nn.Module:
    """Give every expert of a clone, which the caller owns, tensors of its own; returns the clone."""
    apart = expert_tensors(clone)
    for name, parts in apart.items():
        path, _, key = name.rpartition(".")
        module = clone.get_submodule(path)
        tensor = module._parameters.pop(key)
        assert tensor is not None, "found above"
        for own, part in zip(parts.names(key), parts.views(tensor), strict=True):
            module._parameters[own] = nn.Parameter(part, requires_grad=False)
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
        wide: Any = None
        if self.is_concatenated or not self.has_gate:
            wide = _linear(self, first, hidden_states, expert)
        else:
            wide = _InTurn(*(_linear(self, first, hidden_states, expert, half) for half in (0, 1)))
        made = _linear(self, "down_proj", self._apply_gate(wide) if self.has_gate else self.act_fn(wide), expert)
        if self.has_post_expert_norm:
            made = self.post_expert_norm(made)
        share = (top_k_weights * (top_k_index == expert)).sum(-1, keepdim=True)
        total = made * share if total is None else total + made * share
    assert total is not None, "there is at least one expert"
    return total.to(hidden_states.dtype)


def _linear(module: Any, name: str, x: Tensor, *place: int) -> Tensor:
    weight = module._parameters[part_name(name, *place)]
    bias = module._parameters.get(part_name(f"{name}_bias", *place))
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
            found |= dict(zip(apart[name].names(name), apart[name].views(tensor), strict=True))
        else:
            found[name] = tensor
    return side_by_side(found, orders) if orders else found


def put_together(changed: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Changed tensors as a model stores them: parts of experts are put side by side again.

    Args:
        changed: By first name, as a channel graph knows them.
        model: The model as it was.
    """
    tensors = tensor_names(model)[0]
    found = {name: tensor for name, tensor in changed.items() if name in tensors}
    if len(found) == len(changed):
        return found
    for name, parts in expert_tensors(model).items():
        names = parts.names(name)
        if not changed.keys().isdisjoint(names):
            own = [changed.get(*pair) for pair in zip(names, parts.views(tensors[name]), strict=True)]
            assert len({part.shape for part in own}) == 1, f"experts of {name} are no longer equally wide"
            found[name] = parts.together(own)
    return found


def named_apart(names: Iterable[str], model: nn.Module) -> tuple[str, ...]:
    """Names of tensors as a channel graph knows them."""
    apart = expert_tensors(model)
    parts = (apart[name].names(name) if name in apart else [name] for name in names)
    return tuple(one for found in parts for one in found)
