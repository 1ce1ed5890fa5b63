"""The owner's program as it is matched with a suspect's that was respelled: norms are layers, and sizes numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from canon.graph.tensors import clone_with, tensor_names
from canon.normal.lower import lower, program_graph
from canon.normal.nodes import Graph
from canon.normal.normalised import normalise
from canon.normal.respelling import running
from canon.normal.running import STRETCH, called

ALIKE: Final = 1e-4
"""How near a norm's gain is to the tensor that it was read from."""


@dataclass(frozen=True, eq=False)
class Planned:
    """An owner's program with layers in place of norms, and sizes as numbers."""

    model: fx.GraphModule
    names: dict[str, dict[str, str]]
    """By layer that was put in: the owner's tensors that it reads."""

    def plan(self, example: Any) -> Graph:
        """Its values; such a layer's value says what its tensors are called in the owner's program."""
        graph = lower(self.model, example, self.model.graph, owner=True)
        for node in graph.order:
            if node.name in self.names:
                node.value = self.names[node.name]
        return graph


def planned(owner: nn.Module, example: Any) -> Planned | None:
    """An owner's program with layers for its norms and numbers for its sizes; None where it cannot be run, or a norm's
    gain or offset is no tensor of it.

    Its numbers are not looked at. Others are drawn, and tell which tensor a norm's gain is, and which its offset.
    """
    generator = torch.Generator().manual_seed(0)
    tensors = {name: t for name, t in tensor_names(owner)[0].items() if t.is_floating_point()}
    drawn = {name: torch.rand(t.shape, generator=generator) + 0.5 for name, t in tensors.items()}
    kinds = {id(t): _held(drawn[name], t) for name, t in tensors.items()}
    model = clone_with(owner, kinds)
    made = running(model, program_graph(model, example), example)
    if made is None:
        return None
    while normalise(made, called, torch.float32):
        made.run()
    program = made.module()
    names: dict[str, dict[str, str]] = {}
    for path, layer in program.named_children():
        if path.startswith(STRETCH):
            told = {key: _name_of(given, drawn) for key, given in layer.named_parameters()}
            if None in told.values():
                return None
            names[path] = {key: name for key, name in told.items() if name is not None}
    return Planned(program, names)


def _held(numbers: Tensor, like: Tensor) -> Tensor:
    given = numbers.to(like.dtype)
    return nn.Parameter(given, requires_grad=False) if isinstance(like, nn.Parameter) else given


def _name_of(numbers: Tensor, drawn: dict[str, Tensor]) -> str | None:
    flat = numbers.detach().flatten().double()
    same = (n for n, t in drawn.items() if t.numel() == len(flat) and bool(((t.flatten() - flat).abs() < ALIKE).all()))
    return next(same, None)
