"""The coarsest consistent partition of every space into classes of proportional channels.

This is partition refinement, as in minimising an automaton. A space is first judged by those of its producers whose
inputs are already judged; residual connections make the rest wait. When a space's classes change, the spaces that its
consumers feed are looked at again. Classes only ever split, so the work ends, and what remains is the coarsest
partition in which equal channels provably stay equal: starting fine and merging instead would get stuck on two spaces
that feed each other, each waiting for the other's dummies to go.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from canon.describe import (
    Coordinates,
    Parameters,
    Program,
    RowSketch,
    Signature,
    Stack,
    cluster,
    constant_values,
    describe,
    program_of,
    sketch_rows,
)
from canon.graph import ChannelGraph, Space
from canon.graph.tensors import shape_of
from canon.recovery.tolerance import Tolerance

CHANCE = 1e-5
"""How likely it may be that two distinct channels of a space of random ones are taken for equal."""


@dataclass(frozen=True, eq=False)
class Classes:
    """The classes of one space."""

    leader: Tensor
    """For every channel the smallest channel of its class, int64."""

    null: Tensor
    """Channels that are zero wherever they are read."""

    constant: Tensor
    """Channels that are constant, and not zero, wherever they are read."""

    values: Mapping[int, Tensor]
    """By point that a consumer reads: constant values, NaN elsewhere."""

    factors: Mapping[int, Tensor]
    """By tap: channel = factor x leader."""

    spread: Tensor
    """For every channel its disagreement with its leader."""

    scales: Mapping[int, Tensor] = field(default_factory=dict)
    """By tap: channel = scale x what its class computes, whatever the leader's own scale is."""

    def coordinates(self) -> Coordinates:
        """Classes as coordinates for the layers that read the space."""
        number = torch.cumsum(self.leader == torch.arange(self.leader.numel()), 0)
        index = torch.where(self.null, -1, number[self.leader] - 1)
        # In units of the leader, a leader that was scaled to a millionth would drown all other columns of a row.
        return Coordinates(index, int(number[-1]), {**self.factors, **self.scales}, self.values)


class Refinement:
    """The worklist and what it has found so far."""

    def __init__(
        self,
        graph: ChannelGraph,
        tensors: Mapping[str, Tensor],
        tolerance: Tolerance,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.graph, self.tensors, self.tolerance = graph, tensors, tolerance
        self.progress = progress
        self.classes: dict[int, Classes] = {}
        self.coordinates: dict[int, Coordinates] = {}
        self.version: dict[int, int] = {}
        self.sketches: dict[int, tuple[tuple[int, ...], RowSketch]] = {}
        self.used: dict[int, frozenset[int]] = {}
        self.visits = 0
        self.parameters = Parameters(graph, tensors)
        self.programs: dict[int, Program] = {}
        self.readers = self._readers()

    def _readers(self) -> dict[int, list[int]]:
        """By space: the spaces that its consumers make."""
        found: dict[int, set[int]] = {space.id: set() for space in self.graph.spaces}
        for linear in self.graph.maps:
            for column in linear.columns or ():
                found[column.space].update(row.space for row in linear.rows)
        return {space: sorted(readers) for space, readers in found.items()}

    def run(self) -> dict[int, Classes]:
        """Work until nothing splits any more."""
        # Second looks come last: a space at the end of many residual blocks then meets all of them at once.
        queue = [(False, space.id) for space in self.graph.spaces]
        waiting = {space.id for space in self.graph.spaces}
        while queue:
            space = self.graph.spaces[heapq.heappop(queue)[1]]
            waiting.discard(space.id)
            self.visits += 1
            if self.progress is not None:
                self.progress(self.visits, self.visits + len(queue))
            if not self._visit(space):
                continue
            for reader in self.readers[space.id]:
                if reader not in waiting:
                    waiting.add(reader)
                    heapq.heappush(queue, (True, reader))
        return self.classes

    def _visit(self, space: Space) -> bool:
        """Judge a space; True when the layers that read it must be described again."""
        if space.pins:
            if space.id in self.classes:
                return False
            self._store(space, _identity(space))
            return True
        sketches = self._available(space)
        old = self.classes.get(space.id)
        used = frozenset(sketches)
        found = self._judge(space, sketches, old)
        grown = self.used.get(space.id) != used
        self.used[space.id] = used
        if old is None or not _same_classes(old, found):
            self._store(space, found)
            return True
        if not grown:
            return False
        if _same_scales(space, old, found):
            self.classes[space.id] = found  # one more producer agrees: whoever reads the space sees what it saw
            return False
        self._store(space, found)
        return True

    def _store(self, space: Space, classes: Classes) -> None:
        self.classes[space.id] = classes
        self.coordinates[space.id] = classes.coordinates()
        self.version[space.id] = self.version.get(space.id, 0) + 1

    def _available(self, space: Space) -> dict[int, RowSketch]:
        found = {}
        for producer in space.producers:
            linear = self.graph.maps[producer.map]
            inputs = [s.space for s in linear.columns or ()]
            if all(i in self.classes for i in inputs):
                versions = tuple(self.version[i] for i in inputs)
                cached = self.sketches.get(producer.map)
                if cached is None or cached[0] != versions:
                    sketch = sketch_rows(linear, self.graph, self.tensors, self.coordinates)
                    cached = (versions, sketch)
                    self.sketches[producer.map] = cached
                found[producer.map] = cached[1]
        return found

    def _judge(self, space: Space, sketches: Mapping[int, RowSketch], old: Classes | None) -> Classes:
        zero, smallest = self.tolerance.zero, self.tolerance.smallest
        if space.id not in self.programs:
            self.programs[space.id] = program_of(space, self.graph, self.parameters)
        program = self.programs[space.id]
        residue = self.tolerance.residue
        values = constant_values(space, self.graph, self.tensors, sketches, zero, smallest, program, residue)
        read = {c.point: values[c.point] for c in space.consumers}
        still = torch.zeros(space.width, dtype=torch.bool)
        null = still
        if read:
            stacked = torch.stack([*read.values()])
            still = ~stacked.isnan().any(dim=0)
            null = (stacked == 0).all(dim=0)
        constant = still & ~null
        constants = read if bool(constant.any()) else {}
        signature = describe(space, self.graph, self.tensors, sketches, zero, program)
        if constants:
            _add_constants(signature, space, self.graph, constants, constant)
        everyone = torch.arange(space.width)
        label = (null.long() + 2 * constant.long()) * space.groups + everyone // (space.width // space.groups)
        if old is not None:
            label = label * space.width + old.leader
        leader = self._group(space, signature, label)
        leader = torch.where(null, everyone, leader)
        following = torch.nonzero(leader != everyone).flatten()
        spread = torch.zeros(space.width, dtype=torch.float64)
        spread[following] = signature.distance(following, leader[following])
        factors, scales = _factors(signature, leader)
        return Classes(
            leader=leader,
            null=null,
            constant=constant,
            values={p: torch.where(still, v, float("nan")) for p, v in constants.items()},
            factors=factors,
            spread=spread,
            scales=scales,
        )

    def _group(self, space: Space, signature: Signature, label: Tensor) -> Tensor:
        """The leader of every channel; channels with different labels stay apart."""
        return cluster(signature, label, self._equal(space, signature))

    def _equal(self, space: Space, signature: Signature) -> float:
        """How far apart equal channels may be: hardly, where distinct ones come close to each other by chance.

        Rows over two inputs point anywhere on a circle. Among five hundred of them, the nearest two are 1e-5 apart.
        """
        freedom = 0
        for producer in space.producers:
            if producer.map in self.sketches:
                linear = self.graph.maps[producer.map]
                shape = shape_of(self.tensors, linear.weight)
                seen = shape[linear.column_axis] * linear.groups
                if linear.columns is not None:
                    seen = sum(self.coordinates[s.space].size * s.repeat for s in linear.columns)
                freedom += max(0, seen * shape[2:].numel() * producer.repeat // linear.groups - 1)
        for stage in space.stages:
            if stage.kind == "depthwise":
                freedom += shape_of(self.tensors, stage.params["weight"])[1:].numel() - 1
        if _chance(space.width, freedom) < self.tolerance.equal:
            freedom += sum(_varying(stack.data) for stack in signature.stacks if stack.data.shape[2] == 1)
        return min(self.tolerance.equal, _chance(space.width, freedom))


def _chance(width: int, freedom: int) -> float:
    """How near the nearest two of so many channels may come by chance, with so many numbers that vary freely."""
    return float((CHANCE / width**2) ** (1 / max(1, freedom)))


def _varying(blocks: Tensor) -> int:
    """How many of these numbers differ from channel to channel by more than their sign."""
    size = blocks.squeeze(2).abs()
    return int(((size - size.mean(dim=1, keepdim=True)).abs().amax(dim=1) > 1e-3).sum())


def _same_classes(old: Classes, new: Classes) -> bool:
    return (
        torch.equal(old.leader, new.leader)
        and torch.equal(old.null, new.null)
        and torch.equal(old.constant, new.constant)
    )


def _same_scales(space: Space, old: Classes, new: Classes) -> bool:
    """Whether the layers that read a space are described by the same numbers."""
    one = torch.ones(1, dtype=torch.float64).expand(space.width)
    pairs = [(old.scales.get(tap, one), new.scales.get(tap, one)) for tap in {c.tap for c in space.consumers}]
    pairs += [(old.values.get(p, one).nan_to_num(), new.values.get(p, one).nan_to_num())
              for p in old.values.keys() | new.values.keys()]  # fmt: skip
    return all(torch.equal(a, b) for a, b in pairs)


def _identity(space: Space) -> Classes:
    everyone = torch.arange(space.width)
    none = torch.zeros(space.width, dtype=torch.bool)
    zero = torch.zeros(space.width, dtype=torch.float64)
    return Classes(everyone, none, none, {}, {}, zero)


def _factors(signature: Signature, leader: Tensor) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """By tap: each channel relative to its leader, and its scale, 1 where nothing entered."""
    if not signature.scales:
        return {}, {}
    scales = torch.stack([*signature.scales.values()])
    safe = torch.where(scales != 0, scales, 1.0)
    leading = scales.index_select(1, leader)
    factors = torch.where((scales != 0) & (leading != 0), scales / safe.index_select(1, leader), 1.0)
    return dict(zip(signature.scales, factors, strict=True)), dict(zip(signature.scales, safe, strict=True))


def _add_constants(
    signature: Signature,
    space: Space,
    graph: ChannelGraph,
    read: Mapping[int, Tensor],
    constant: Tensor,
) -> None:
    """Constant channels are told apart by their values alone: what made them does not matter.

    Whoever reads a constant can scale it, of either sign and also where no other scale passes: only the pattern of its
    values over the points of a tap counts.
    """
    signature.stacks[:] = [stack.masked(constant) for stack in signature.stacks]
    for tap in graph.space_taps(space):
        points = [p for p in read if graph.taps[p] == tap]
        if not points:
            continue
        values = torch.stack([torch.where(constant, read[p], 0.0) for p in points], dim=1)
        largest = values.gather(1, values.abs().argmax(dim=1, keepdim=True)).squeeze(1)
        norm = values.norm(dim=1) * torch.sign(largest)
        direction = values / torch.where(norm != 0, norm, torch.ones_like(norm))[:, None]
        absent = torch.ones_like(norm) if tap in graph.fixed_taps else torch.zeros_like(norm)
        signature.scales[tap] = torch.where(constant, norm, signature.scales.get(tap, absent))
        signature.stacks.append(Stack(direction[None], None, True))
