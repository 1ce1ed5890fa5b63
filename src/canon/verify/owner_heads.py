"""A suspect's attention heads in the owner's order and bases, known by products that no basis changes.

What a head computes fixes `W_O·W_V` and `W_Qᵀ·W_K`, and not the matrices by themselves. These products say which head
is which. Then values tell the one map between both bases, by least squares, and outputs, which take it back, say
whether it is one: they had no part in it, so that a stranger's are no nearer to the owner's than chance. Keys and
queries likewise. Nothing but this map is taken from the owner, and it changes no output, which is tried.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from canon.graph import LinearMap
from canon.graph.heads import Attention, Projection, attention_layers
from canon.graph.inputs import fitting
from canon.rewrite.heads import Turn, turn_heads
from canon.verify.layout import survey
from canon.verify.owner_order import placed
from canon.verify.owner_streams import same_function
from canon.verify.side import Side
from canon.verify.traced import Traced

ALIKE: Final = 0.5
"""Least cosine with the owner's of what had no part in finding a map; a stranger's is that of random numbers."""

SAME: Final = 1e-6
"""Values no farther from the owner's than this stand in the owner's basis already."""

BETTER: Final = 0.5
"""A map that leaves more than this of the difference says nothing: what is left is noise or training."""

NUMBERS: Final = 24
"""Numbers on each side that products are projected to."""


def in_owner_heads(model: nn.Module, owner: Traced) -> nn.Module:
    """The model, or a copy with its heads where the owner's stand, in the owner's bases.

    Args:
        model: The suspect, under the owner's names. It is not changed.
        owner: The owner's model.
    """
    attentions = attention_layers(owner.model, owner.example)
    if not attentions:
        return model
    traced = Traced.of(model, fitting(owner.example, model))
    kept = [one for one in attentions if all(_shape(traced, name) == _shape(owner, name) for name in one.tensors)]
    outputs = {one.output.weight for one in kept}
    with torch.no_grad():
        side = placed(_without(traced, outputs), survey(_without(owner, outputs)))
        turns = {one: _turn(one, _Heads.of(one, traced, side), _Heads.of(one, owner, None)) for one in kept}
        found = {one: turn for one, turn in turns.items() if turn is not None}
        if not found:
            return model
        turned = turn_heads(model, found)
        return turned if same_function(turned, traced) else model


def _without(traced: Traced, outputs: Set[str]) -> Traced:
    """A model of whose channels nothing is told by what heads give: that is in a basis that is not known yet."""
    graph = traced.graph
    dark = {index for index, linear in enumerate(graph.maps) if linear.weight in outputs}
    spaces = [
        replace(space, producers=left) if (left := tuple(p for p in space.producers if p.map not in dark)) else space
        for space in graph.spaces
    ]
    return replace(traced, graph=replace(graph, spaces=tuple(spaces)))


def _shape(traced: Traced, name: str) -> tuple[int, ...] | None:
    return tuple(traced.tensors[name].shape) if name in traced.tensors else None


@dataclass(frozen=True, eq=False)
class _Heads:
    """One attention's matrices over channels in the owner's coordinates, `heads x entries x channels`."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    @staticmethod
    def of(attention: Attention, traced: Traced, side: Side | None) -> _Heads:
        return _Heads(*(_rows(part, traced, side) for part in attention.parts))


def _rows(part: Projection, traced: Traced, side: Side | None) -> Tensor:
    """A head's rows, or columns, over channels in the owner's order; a bias counts as one channel more."""
    weight = traced.tensors[part.weight].detach().double().movedim(part.axis, 0)
    if side is not None:
        linear = next((one for one in traced.graph.maps if one.weight == part.weight), None)
        place, factor = _places(linear, part, side) if linear is not None else (None, None)
        if place is not None and factor is not None:
            weight = torch.zeros_like(weight).index_add_(1, place, weight * factor)
    found = weight[part.index]
    if part.bias is None:
        return found
    return torch.cat([found, traced.tensors[part.bias].detach().double()[part.index][..., None]], -1)


def _places(linear: LinearMap, part: Projection, side: Side) -> tuple[Tensor | None, Tensor | None]:
    """Where the entries of the other axis belong, and what they are multiplied by."""
    rows = linear.row_axis != part.axis
    segments = linear.rows if rows else linear.columns
    if segments is None or any(one.repeat != 1 or one.space not in side.coordinates for one in segments):
        return None, None
    places, factors, start = [], [], 0
    for one in segments:
        named = side.coordinates[one.space]
        factor = named.factor(one.tap)
        places.append(named.place + start)
        factors.append(np.divide(1, factor, out=np.zeros_like(factor), where=factor != 0) if rows else factor)
        start += named.size
    return torch.from_numpy(np.concatenate(places)), torch.from_numpy(np.concatenate(factors))


def _turn(attention: Attention, ours: _Heads, theirs: _Heads) -> Turn | None:
    """What puts our heads where theirs stand; None: they stand there, or are others."""
    size = attention.heads // attention.groups
    order = _order(attention, ours, theirs)
    groups = order[::size] // size
    width, entries = attention.key.index.shape[1], attention.value.index.shape[1]
    values = torch.eye(entries, dtype=torch.float64).repeat(attention.groups, 1, 1)
    keys = torch.eye(width, dtype=torch.float64).repeat(attention.groups, 1, 1)
    for group, ours_at in enumerate(groups.tolist()):
        mine, his = order[group * size : (group + 1) * size], slice(group * size, (group + 1) * size)
        pair = ours.value[ours_at], theirs.value[group]
        values[group] = _held(_any(*pair), *pair, ours.output[mine], theirs.output[his])
        pair = ours.key[ours_at], theirs.key[group]
        keys[group] = _held(_agreeing(attention, *pair), *pair, ours.query[mine], theirs.query[his])
    moved = not torch.equal(order, torch.arange(len(order)))
    turned = any(not torch.equal(one, torch.eye(one.shape[1]).to(one).expand_as(one)) for one in (values, keys))
    return Turn(order, values, keys) if moved or turned else None


def _order(attention: Attention, ours: _Heads, theirs: _Heads) -> Tensor:
    """Our head that belongs at each of their places; all as it stands where heads say nothing."""
    count, size = attention.groups, attention.heads // attention.groups
    still = torch.arange(attention.heads)
    if not attention.movable:
        return still
    ours_told, theirs_told = _told(ours), _told(theirs)
    cosine = (theirs_told @ ours_told.T).view(count, size, count, size).transpose(1, 2)
    within = torch.empty(count, count, size, dtype=torch.int64)
    score = torch.empty(count, count)
    for i in range(count):
        for j in range(count):
            rows, columns = linear_sum_assignment(-cosine[i, j].numpy())
            within[i, j] = torch.from_numpy(columns)
            score[i, j] = cosine[i, j][rows, columns].sum()
    groups = torch.from_numpy(linear_sum_assignment(-score.numpy())[1])
    order = (groups[:, None] * size + within[torch.arange(count), groups]).flatten()
    there, here = ((theirs_told * ours_told[one]).sum(1) for one in (order, still))
    return order if float(there.median()) >= ALIKE and float((there - here).sum()) > SAME else still


def _told(heads: _Heads) -> Tensor:
    """`heads x numbers`: what values and outputs of a head are together, and queries and keys, projected."""
    generator = torch.Generator().manual_seed(0)
    size = len(heads.output) // len(heads.value)

    def seen(matrices: Tensor) -> Tensor:
        return matrices @ torch.randn(matrices.shape[-1], NUMBERS, generator=generator, dtype=torch.float64)

    def product(shared: Tensor, own: Tensor) -> Tensor:
        return nn.functional.normalize((seen(own).mT @ seen(shared).repeat_interleave(size, 0)).flatten(1), dim=1)

    return torch.cat([product(heads.value, heads.output), product(heads.key, heads.query)], 1)


def _any(ours: Tensor, theirs: Tensor) -> Tensor:
    """The map that brings our rows nearest to theirs."""
    found: Tensor = torch.linalg.lstsq(ours.T, theirs.T, driver="gelsd").solution.T
    return found


def _agreeing(attention: Attention, ours: Tensor, theirs: Tensor) -> Tensor:
    """The same of those maps that positions allow."""
    found = torch.eye(len(ours), dtype=torch.float64)
    loose = attention.loose
    if len(loose):
        found[loose[:, None], loose] = _any(ours[loose], theirs[loose])
    for pair in attention.pairs:
        mine, his = (torch.complex(rows[pair[0]], rows[pair[1]]) for rows in (ours, theirs))
        size = mine.abs().square().sum()
        factor = (mine.conj() * his).sum() / torch.where(size > 0, size, 1.0)
        found[pair[:, None], pair] = torch.stack(
            [torch.stack([factor.real, -factor.imag]), torch.stack([factor.imag, factor.real])]
        )
    return found


def _held(found: Tensor, ours: Tensor, theirs: Tensor, other: Tensor, other_theirs: Tensor) -> Tensor:
    """A map, if the other side bears it out and it is needed; otherwise 1.

    Args:
        found: What acts on our rows.
        ours: These rows.
        theirs: The owner's.
        other: Ours on the side that takes it back, `heads x entries x channels`.
        other_theirs: The owner's.
    """
    one, size = torch.eye(len(found), dtype=torch.float64), float(theirs.norm())
    apart, left = float((ours - theirs).norm()), float((found @ ours - theirs).norm())
    if apart <= SAME * size or left > BETTER * apart or not float(torch.linalg.cond(found)) <= 1 / SAME:  # or no number
        return one
    back = torch.linalg.inv(found).mT @ other
    cosine = nn.functional.cosine_similarity(back.flatten(), other_theirs.flatten(), dim=0)
    return found if float(cosine) >= ALIKE else one


__all__ = ["in_owner_heads"]
