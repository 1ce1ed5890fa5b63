"""Linear spaces: channels that nothing but linear layers read, such as the bottlenecks of MobileNet and EfficientNet.

There a channel may be any sum of others, and need not be like any of the owner's. What reads a channel that is nobody's
then reads sums of the channels that were found: `y = C·y'` by least squares over rows, so `W·y = (W·C)·y'`. Noise that
cancels where it is read cancels here as well, since `C` is linear in the rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.containment.changed import Changed
from canon.containment.matching import Accepted
from canon.describe import Array, Parameters, sketch_rows
from canon.describe.curves import Curves
from canon.graph import Consumer, LinearMap, Space
from canon.verify.side import Side

NUMBERS: Final = 2
"""Numbers of a row for every channel that rows are sums of."""

CANCELLED: Final = 3e-5
"""Sums this small against what was added up are rounding."""

RANK: Final = 1e-5
"""Directions that rows have by less, relative to the largest, are rounding."""

WIDEST: Final = 1024
"""Channels of a space at most."""

Path = tuple[int, ...]
"""A producer, and the stages that are no multiple of their input."""

Terms = dict[Path, Array]
"""A value as a sum over paths: `width x entries` each."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Columns that are read as sums of others."""

    consumer: Consumer
    others: Tensor
    """Channels that are read no longer."""

    sums: Tensor
    """`others x channels`: what they are sums of."""


class LinearSpaces:
    """The linear spaces of a suspect: its tensors are changed so that found channels carry what others did."""

    def __init__(self, side: Side, tensors: Changed) -> None:
        self.side, self.graph, self.tensors = side, side.graph, tensors
        self._curves, self._terms = Curves(), dict[int, dict[int, Terms]]()
        self._sums: dict[str, dict[tuple[int, int], Sums]] = {}
        self._settled: dict[str, Tensor] = {}
        self._mixed = frozenset[int]()
        self._seen: dict[int, object] = {}
        uses = Counter(linear.weight for linear in side.graph.maps)
        self.once = {weight for weight, count in uses.items() if count == 1}

    def terms(self, space: Space) -> dict[int, Terms]:
        """By point that is read: what producers add there."""
        if space.id not in self._terms:
            self._terms[space.id] = linear_terms(space, Parameters(self.graph, self.tensors), self._curves)
        return self._terms[space.id]

    def read_found(self, space: Space, accepted: Accepted) -> None:
        """Let what reads a space read channels that were found, where it is linear and others are read as well."""
        some, others = accepted.best[accepted.found], torch.nonzero(accepted.match < 0).flatten()
        state = self.side.state(self.side.available(space))
        basis = (state, accepted.match.tolist(), some.tolist())
        if not some.numel() or not others.numel() or self._seen.get(space.id) == basis:
            return
        self._seen[space.id] = basis
        changed = False
        for consumer in space.consumers:
            linear, terms = self.graph.maps[consumer.map], self.terms(space).get(consumer.point)
            if terms is None or linear.groups > 1 or linear.weight not in self.once:
                continue
            values = values_at(self.side, space, terms, some.numel())
            sums = None if values is None else sums_of(values, some, others)
            if sums is not None:
                whole = torch.zeros(others.numel(), space.width, dtype=sums.dtype)
                whole[:, some] = sums
                self.write(linear.weight, Sums(consumer, others, whole))
                changed = True
        if changed:
            self.side.touch(space)

    def write(self, name: str, sums: Sums) -> None:
        """Let a layer read sums of channels instead of others, in the place of what was written there before."""
        places = self._sums.setdefault(name, {})
        places[sums.consumer.map, sums.consumer.offset] = sums
        weight = self._settled[name] if name in self._settled else self.tensors.given[name]
        for each in places.values():
            weight = read_as_sums(weight, self.graph.maps[each.consumer.map], each)
        self.tensors.changed[name] = weight

    @property
    def fitted(self) -> frozenset[int]:
        """Maps whose columns were fitted by least squares."""
        return frozenset(index for places in self._sums.values() for index, _ in places) | self._mixed

    def settle(self, space: Space) -> None:
        """Tensors that make or read a space are from now on as they stand, and are to be described again."""
        for index in {*(p.map for p in space.producers), *(c.map for c in space.consumers)}:
            name = self.graph.maps[index].weight
            self._settled[name] = self.tensors[name]
            self._sums.pop(name, None)
            self._mixed |= {index}
        self._terms.pop(space.id, None)
        self._seen.pop(space.id, None)
        self.side.forget(space)


def linear_terms(space: Space, parameters: Parameters, curves: Curves) -> dict[int, Terms]:
    """By point that is read: what every producer adds there; nothing where it is no linear function of them.

    Args:
        space: The space.
        parameters: Of its stages.
        curves: What functions are like.
    """
    if space.groups > 1 or space.width > WIDEST or any(producer.repeat > 1 for producer in space.producers):
        return {}
    known: dict[int, Terms | None] = {}
    for index, producer in enumerate(space.producers):
        known[producer.point] = {(index,): np.ones((space.width, 1))}
    for at, stage in enumerate(space.stages):
        given = [known.get(point) for point in stage.inputs]
        parts = [part for part in given if part is not None]
        found: Terms | None = None
        if len(parts) < len(given) or stage.repeat > 1:
            pass
        elif stage.kind == "add":
            found = _added(parts)
        elif stage.kind == "norm":
            factor = parameters.affine(stage, space).factor
            found = {path: value * factor for path, value in parts[0].items()}
        elif stage.kind in ("depthwise", "scale") and "weight" in stage.params:
            kernel = parameters.of(stage, space)["weight"]
            moved = kernel.shape[1] > 1
            found = {(*path, at) if moved else path: _products(value, kernel) for path, value in parts[0].items()}
        elif stage.kind == "shift":
            found = parts[0]
        elif stage.kind == "activation" and (stage.reach == "mean" or curves.of(stage.function).linear):
            found = {(*path, at): value for path, value in parts[0].items()}
        known[stage.output] = found
    return {c.point: terms for c in space.consumers if (terms := known.get(c.point)) is not None}


def values_at(side: Side, space: Space, terms: Terms, channels: int) -> Tensor | None:
    """What channels are where they are read, `width x numbers`, in the owner's coordinates; None: it is not known.

    Args:
        side: The model, whose inputs to the space have coordinates.
        space: The space.
        terms: What producers add there.
        channels: How many channels others will be sums of, which takes as many numbers.
    """
    maps, found = side.available(space), []
    numbers = max(side.numbers, -(-NUMBERS * channels // len(terms)))
    for path, value in terms.items():
        producer = space.producers[path[0]]
        if producer.map not in maps:
            return None
        linear = side.graph.maps[producer.map]
        rows = sketch_rows(linear, side.graph, side.tensors, side.coordinates, side.seed, numbers).vectors
        found.append(_products(value, rows[producer.offset : producer.offset + space.width]))
    whole = torch.from_numpy(np.concatenate(found, axis=1))
    return whole if bool(torch.isfinite(whole).all()) else None


def sums_of(values: Tensor, some: Tensor, others: Tensor) -> Tensor | None:
    """`C` with `values[others] ≈ C·values[some]` by least squares; None: these are nothing."""
    size = torch.linalg.vector_norm(values, dim=1)
    size = torch.where(size > 0, size, 1.0)
    unit = values / size[:, None]
    if not bool(unit[some].any()):
        return None
    found: Tensor = unit[others] @ torch.linalg.pinv(unit[some], rtol=RANK)
    return found * size[others, None] / size[some]


def read_as_sums(weight: Tensor, linear: LinearMap, sums: Sums) -> Tensor:
    """The weight of a layer without groups, with columns that read sums of channels instead of others."""
    changed = weight.detach().clone()
    place = changed.movedim((linear.row_axis, linear.column_axis), (0, 1))
    offset, channels = sums.consumer.offset, sums.sums.shape[1]
    place = place[:, offset : offset + channels * sums.consumer.repeat]
    columns = place.double().reshape(place.shape[0], channels, -1)
    moved = torch.einsum("rok,oc->rck", columns[:, sums.others], sums.sums.to(columns.device))
    mass = torch.einsum("rok,oc->rck", columns[:, sums.others].abs(), sums.sums.abs().to(columns.device))
    columns[:, sums.others] = 0.0
    moved = columns + moved
    # A row that read nothing of the owner's reads nothing now: what others added to it has cancelled, but for rounding.
    moved[moved.abs() <= CANCELLED * (mass + columns.abs())] = 0.0
    place.copy_(moved.reshape(place.shape))
    return changed


def _products(first: Array, second: Array) -> Array:
    """Row by row, all products of entries."""
    product: Array = (first[:, :, None] * second[:, None, :]).reshape(len(first), -1)
    return product


def _added(parts: list[Terms]) -> Terms:
    found: Terms = {}
    for part in parts:
        for path, value in part.items():
            found[path] = found[path] + value if path in found else value
    return found
