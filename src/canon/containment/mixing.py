"""Linear spaces in another basis: `A·y` where the owner has `y`, and readers that take it back.

`A` may have more rows than columns. No channel is then like one of the owner's, but together they span what the owner's
do. The owner's rows are told as sums of the suspect's by least squares, `F_o ≈ L·F_s`; `L` is applied to all that make
the space, and what reads it reads `M·y'` with `M = F_s·(L·F_s)⁺`. Many rows over few inputs span anything, so a fit
counts only where a stranger's rows would leave several times as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from canon.containment.linear import LinearSpaces, Sums, linear_terms, read_as_sums, sums_of, values_at
from canon.describe import Parameters
from canon.describe.curves import Curves
from canon.graph import Producer, Space, Stage
from canon.verify.layout import Step, coordinates
from canon.verify.side import Side
from canon.verify.traced import Traced

LEFT: Final = 0.2
"""What a fit leaves of the owner's rows, in squares, at most: this part of what random rows would leave."""

FREE: Final = 0.8
"""Where random rows would explain more of the owner's than this, nothing can be told."""

DEVIATIONS: Final = 4.0
"""How many standard deviations more than the mean random rows may explain of one of the owner's by chance."""


@dataclass(frozen=True, eq=False)
class Basis:
    """How a space's channels are brought into the owner's basis."""

    rows: Tensor
    """`owner's x suspect's`: the new channels as sums of the old."""

    columns: Tensor
    """`suspect's x owner's`: the old channels as sums of the new."""

    chance: float
    """The cosine that a stranger's rows would reach with such a fit."""


class OwnerBases:
    """The owner's linear spaces, told along the steps of its layout."""

    def __init__(self, owner: Traced, side: Side) -> None:
        self.owner = owner
        self.side = Side(owner.graph, owner.tensors, numbers=side.numbers, seed=side.seed)
        self.parameters, self.curves = Parameters(owner.graph, owner.tensors), Curves()

    def place(self, step: Step) -> None:
        """Give the owner's channels of a step their own names."""
        everyone = torch.arange(len(step.label))
        named = coordinates(everyone, step.leader, step.scales, step.scales, {})
        self.side.place(self.owner.graph.spaces[step.space], named, frozenset(step.scales))

    def basis(self, suspect: LinearSpaces, space: Space) -> Basis | None:
        """The owner's basis of a suspect's space; None: it is no linear image of it, or that cannot be told."""
        own = self.owner.graph.spaces[space.id]
        theirs, ours = suspect.terms(space), linear_terms(own, self.parameters, self.curves)
        if space.width < own.width or not theirs or theirs.keys() != ours.keys() or _norms(space) is None:
            return None
        for point in theirs:
            mine = values_at(suspect.side, space, theirs[point], space.width)
            yours = values_at(self.side, own, ours[point], space.width)
            if mine is not None and yours is not None and mine.shape[1] == yours.shape[1]:
                entries = sum(_entries(suspect, space.producers[path[0]]) for path in theirs[point])
                return _fit(mine, yours, min(entries, mine.shape[1]))
        return None


def _fit(mine: Tensor, yours: Tensor, entries: int) -> Basis | None:
    explained = mine.shape[0] / entries
    if explained > FREE:
        return None
    whole = torch.cat([mine, yours])
    some = torch.arange(mine.shape[0])
    rows = sums_of(whole, some, torch.arange(mine.shape[0], whole.shape[0]))
    if rows is None:
        return None
    size = yours.square().sum(dim=1)
    left = (yours - rows @ mine).square().sum(dim=1) / torch.where(size > 0, size, 1.0)
    if float(left.median()) > LEFT * (1 - explained):
        return None
    new = rows @ mine
    both = torch.cat([new, mine])
    columns = sums_of(both, torch.arange(new.shape[0]), torch.arange(new.shape[0], both.shape[0]))
    spread = (2 * explained * (1 - explained) / entries) ** 0.5
    return None if columns is None else Basis(rows, columns, min(1.0, explained + DEVIATIONS * spread) ** 0.5)


def change_basis(suspect: LinearSpaces, space: Space, basis: Basis) -> bool:
    """Write a suspect's space in another basis; channels beyond the owner's are zero. False: a layer does not allow it.

    Its tensors are changed.
    """
    norms, readers = _norms(space), [suspect.graph.maps[consumer.map] for consumer in space.consumers]
    makers = [suspect.graph.maps[producer.map] for producer in space.producers]
    if norms is None or any(x.groups > 1 or x.weight not in suspect.once for x in (*readers, *makers)):
        return False
    parameters, tensors = Parameters(suspect.graph, suspect.tensors), suspect.tensors
    whole = torch.zeros(space.width, space.width, dtype=torch.float64)
    whole[:, : basis.columns.shape[1]] = basis.columns
    for consumer, linear in zip(space.consumers, readers, strict=True):
        sums = Sums(consumer, torch.arange(space.width), whole)
        tensors.changed[linear.weight] = read_as_sums(tensors[linear.weight], linear, sums)
    for producer, linear in zip(space.producers, makers, strict=True):
        here, stage = slice(producer.offset, producer.offset + space.width), norms.get(producer.point)
        rows = tensors[linear.weight].detach().movedim(linear.row_axis, 0)[here].double().cpu()
        given = torch.zeros(space.width, dtype=torch.float64)
        if linear.bias is not None:
            given = tensors[linear.bias].detach()[here].double().cpu()
        if stage is not None:
            affine = parameters.affine(stage, space)
            factor, shift = torch.from_numpy(affine.factor[:, 0]), torch.from_numpy(affine.shift[:, 0])
            rows, shift = rows * factor.view(-1, *[1] * (rows.ndim - 1)), factor * given + shift
            given, own = torch.zeros_like(given), slice(stage.offset, stage.offset + space.width)
            for role, value in {"weight": 1.0, "mean": 0.0, "var": 1.0 - stage.eps}.items():
                tensors.put(stage.params[role], own, torch.full_like(given, value))
            tensors.put(stage.params["bias"], own, _mixed(shift, basis.rows))
        weight = tensors[linear.weight].detach().clone()
        weight.movedim(linear.row_axis, 0)[here] = _mixed(rows, basis.rows).to(weight)
        tensors.changed[linear.weight] = weight
        if linear.bias is not None:
            tensors.put(linear.bias, here, _mixed(given, basis.rows))
    suspect.settle(space)
    return True


def _mixed(rows: Tensor, basis: Tensor) -> Tensor:
    """Sums of rows, then zeros: as many rows as there were."""
    found = torch.zeros_like(rows)
    found[: len(basis)] = torch.einsum("os,s...->o...", basis, rows)
    return found


def _norms(space: Space) -> dict[int, Stage] | None:
    """By point that a layer makes: the norm behind it; None: something else stands there that mixing does not pass."""
    made, found = {producer.point for producer in space.producers}, {}
    for stage in space.stages:
        whole = {"weight", "bias", "mean", "var"} <= stage.params.keys()
        if stage.kind == "norm" and stage.inputs[0] in made and stage.inputs[0] not in found and whole:
            found[stage.inputs[0]] = stage
        elif stage.kind != "add":
            return None
    return found


def _entries(suspect: LinearSpaces, producer: Producer) -> int:
    """Numbers of a row, in the owner's coordinates."""
    linear = suspect.graph.maps[producer.map]
    weight = suspect.tensors[linear.weight]
    kernel = weight[0].numel() // weight.shape[1] if linear.row_axis == 0 else weight[:, 0].numel() // weight.shape[0]
    inputs = sum(suspect.side.coordinates[s.space].size * s.repeat for s in linear.columns or ())
    return kernel * (inputs or weight.shape[linear.column_axis])
