"""Attention heads in another order and in other bases: the function stays.

`W_O·W_V` and `W_Qᵀ·W_K` are all that a head computes with. Whatever acts on one of both and is taken back by the other
changes nothing: any invertible map between values and outputs, and between queries and keys those that agree with what
positions do there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from canon.graph.heads import Attention, Projection
from canon.graph.mapped import results
from canon.graph.tensors import tensor_names
from canon.rewrite.surgery import replace_tensors


@dataclass(frozen=True, eq=False)
class Turn:
    """What is done to the heads of one attention. Matrices are float64 and invertible."""

    heads: Tensor
    """The head that shall stand at each place; those of one group stay together."""

    values: Tensor
    """`groups x entries x entries`: what acts on the values of each group, as it stands afterwards."""

    keys: Tensor
    """The same for keys; it is taken back by the queries of the group."""

    def groups(self, count: int) -> Tensor:
        """The group that shall stand at each place."""
        size = len(self.heads) // count
        return self.heads[::size] // size


def turn_heads(model: nn.Module, turns: Mapping[Attention, Turn]) -> nn.Module:
    """A copy of a model with the heads of some attentions turned. The model is not changed."""
    tensors, _ = tensor_names(model)
    changed = results(tensors)
    with torch.no_grad():
        for attention, turn in turns.items():
            new = {name: tensors[name].detach().clone() for name in attention.tensors}
            size = attention.heads // attention.groups
            groups = turn.groups(attention.groups)
            back = torch.linalg.inv(turn.values).mT, torch.linalg.inv(turn.keys).mT
            _act(new, tensors, attention.value, groups, turn.values)
            _act(new, tensors, attention.key, groups, turn.keys)
            _act(new, tensors, attention.output, turn.heads, back[0].repeat_interleave(size, 0))
            _act(new, tensors, attention.query, turn.heads, back[1].repeat_interleave(size, 0))
            for name, tensor in new.items():
                changed[name] = tensor
    return replace_tensors(model, changed)


def _act(new: Mapping[str, Tensor], old: Mapping[str, Tensor], part: Projection, order: Tensor, maps: Tensor) -> None:
    for name, axis in ((part.weight, part.axis), (part.bias, 0)):
        if name is not None:
            given = old[name].detach().movedim(axis, 0)
            rows = given[part.index[order].to(given.device)]
            acted = torch.einsum("hij,hj...->hi...", maps.to(given.device), rows.double())
            # What is not acted upon stays bit for bit.
            acted = torch.where(acted == rows.double(), rows, acted.to(rows.dtype))
            new[name].movedim(axis, 0)[part.index.flatten().to(given.device)] = acted.flatten(0, 1)
