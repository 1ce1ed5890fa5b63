"""The coarsest consistent partition of every space into classes of proportional channels.

This is partition refinement, as in minimising an automaton. A space is first judged by those of its producers whose
inputs are already judged; residual connections make the rest wait. When a space's classes change, the spaces that its
consumers feed are looked at again. Classes only ever split, so the work ends, and what remains is the coarsest
partition in which equal channels provably stay equal: starting fine and merging instead would get stuck on two spaces
that feed each other, each waiting for the other's dummies to go.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from canon.describe import (
    Array,
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
from canon.describe.sketch import nearest
from canon.graph import ChannelGraph, Space
from canon.graph.tensors import shape_of
from canon.recovery.confirm import mistaken, rows_of
from canon.recovery.tolerance import Tolerance
from canon.rewrite.axes import columns_of


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
    """For every channel how far it is from what it is taken for: its leader, or nothing at all."""

    scales: Mapping[int, Tensor] = field(default_factory=dict)
    """By tap: channel = scale x what its class computes, whatever the leader's own scale is."""

    doubt: Tensor = field(default_factory=lambda: torch.zeros(0))
    """For every channel how much noise must have moved it, if that alone makes it what it is taken for: a constant,
    or equal to another although the two differ."""

    def coordinates(self) -> Coordinates:
        """Classes as coordinates for the layers that read the space."""
        leader = self.leader.numpy()
        number = np.cumsum(leader == np.arange(leader.size))
        index = np.where(self.null.numpy(), -1, number[leader] - 1)
        # In units of the leader, a leader that was scaled to a millionth would drown all other columns of a row.
        factors = {tap: factor.numpy() for tap, factor in {**self.factors, **self.scales}.items()}
        return Coordinates(index, int(number[-1]), factors, {p: value.numpy() for p, value in self.values.items()})


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
        self.confirmed: dict[int, object] = {}
        self.apart: dict[int, Array] = {}
        """By space: channels that sketches took for what they are not have numbers of their own."""

        self.visits = 0
        self.parameters = Parameters(graph, tensors)
        self.programs: dict[int, Program] = {}
        self.readers = self._readers()
        self.seed = secrets.randbits(31)
        """Nobody can know beforehand which rows will look alike."""

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
            changed = self.readers[space.id] if self._visit(space) else []
            if not queue and not changed:
                changed = self._told_apart()
            for reader in changed:
                if reader not in waiting:
                    waiting.add(reader)
                    heapq.heappush(queue, (True, reader))
        return self.classes

    def _told_apart(self) -> list[int]:
        """Compare whole rows; the spaces in which some were mistaken for others and must be judged again."""
        found = []
        for space in self.graph.spaces:
            classes, state = self.classes[space.id], (self.version[space.id], self._versions(space))
            if space.pins or self.confirmed.get(space.id) == state:
                continue
            self.confirmed[space.id] = state
            given = rows_of(space, self.graph, self.tensors, self.coordinates, self._available(space))
            # Constants are told apart by their values, whatever made them.
            everyone, leader, null = np.arange(space.width), classes.leader.numpy(), classes.null.numpy()
            leader = np.where(classes.constant.numpy(), everyone, leader)
            wrong = mistaken(given, leader, null, self.tolerance)
            if wrong.any():
                apart = self.apart.get(space.id, np.zeros(space.width, dtype=np.int64))
                # What shares a class and is wrong in it may still be alike: it is compared again.
                self.apart[space.id] = np.where(wrong, apart + 1, apart)
                found.append(space.id)
        return found

    def _versions(self, space: Space) -> tuple[int, ...]:
        """The state of everything that a space's layers read."""
        maps = (self.graph.maps[producer.map] for producer in space.producers)
        return tuple(self.version[s.space] for linear in maps for s in linear.columns or ())

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
                    sketch = sketch_rows(linear, self.graph, self.tensors, self.coordinates, self.seed)
                    cached = (versions, sketch)
                    self.sketches[producer.map] = cached
                found[producer.map] = cached[1]
        return found

    def _judge(self, space: Space, sketches: Mapping[int, RowSketch], old: Classes | None) -> Classes:
        zero, smallest = min(self.tolerance.zero, self.tolerance.noise), self.tolerance.smallest
        if space.id not in self.programs:
            self.programs[space.id] = program_of(space, self.graph, self.parameters)
        program = self.programs[space.id]
        residue = self.tolerance.residue
        found = constant_values(space, self.graph, self.tensors, sketches, zero, smallest, program, residue)
        read = self._read(space, found.values)
        still = null = np.zeros(space.width, dtype=bool)
        if read:
            stacked = np.array([*read.values()])
            still = ~np.isnan(stacked).any(axis=0)
            null = (stacked == 0).all(axis=0)
            if space.id in self.apart:  # what seemed to be nothing, and is not, is left as it is
                null, still = null & (self.apart[space.id] == 0), still & (self.apart[space.id] == 0)
        constant = still & ~null
        constants = read if constant.any() else {}
        signature = describe(space, self.graph, self.tensors, sketches, zero, program)
        signature.trust(min(1.0, self.tolerance.noise / self.tolerance.equal))
        if constants:
            _add_constants(signature, space, self.graph, constants, constant)
        everyone = np.arange(space.width)
        label = (null + 2 * constant) * space.groups + everyone // (space.width // space.groups)
        if old is not None:
            label = label * space.width + old.leader.numpy()
        if space.id in self.apart:
            label = label * space.width + self.apart[space.id]
        leader = np.where(null, everyone, self._group(space, signature, label))
        following = np.flatnonzero(leader != everyone)
        spread = np.where(null, found.blur, 0.0)
        doubt = np.where(still, found.blur, 0.0)
        spread[following], plain = signature.distances(following, leader[following])
        alike = plain <= self.tolerance.equal
        doubt[following] = np.maximum(doubt[following], np.where(alike, 0.0, spread[following]))
        factors, scales = _factors(signature, leader)
        values = {p: np.where(still, v, np.nan) for p, v in constants.items()}
        return Classes(
            leader=torch.from_numpy(leader),
            null=torch.from_numpy(null),
            constant=torch.from_numpy(constant),
            values=_tensors(values),
            factors=_tensors(factors),
            spread=torch.from_numpy(spread),
            scales=_tensors(scales),
            doubt=torch.from_numpy(doubt),
        )

    def _read(self, space: Space, values: Mapping[int, Array]) -> dict[int, Array]:
        """By point that a consumer reads: constants there; zero where all columns of a channel are zeros.

        What a channel is where nothing reads it does not matter: a pool that pads, say, makes no constant of it.
        """
        read = {consumer.point: values[consumer.point] for consumer in space.consumers}
        moving = np.isnan(np.array([*read.values()])) if read else np.zeros((1, space.width), dtype=bool)
        asked = np.flatnonzero(moving.any(axis=0) & ~moving.all(axis=0))
        if not asked.size:
            return read
        used = {point: np.zeros(asked.size, dtype=bool) for point in read}
        for consumer in space.consumers:
            linear, length = self.graph.maps[consumer.map], space.width * consumer.repeat
            columns = columns_of(self.tensors[linear.weight], linear, consumer.offset, length)
            columns = columns.unflatten(1, (space.width, -1))[:, torch.from_numpy(asked).to(columns.device)]
            used[consumer.point] |= (columns != 0).transpose(0, 1).flatten(1).any(dim=1).cpu().numpy()
        for point, value in read.items():
            read[point] = value.copy()
            read[point][asked] = np.where(np.isnan(value[asked]) & ~used[point], 0.0, value[asked])
        return read

    def _group(self, space: Space, signature: Signature, label: Array) -> Array:
        """The leader of every channel; channels with different labels stay apart."""
        return cluster(signature, label, self._equal(space, signature), self.seed)

    def _equal(self, space: Space, signature: Signature) -> float:
        """How far apart equal channels may be: hardly, where distinct ones come close to each other by chance.

        Rows over two inputs point anywhere on a circle. Among five hundred of them, the nearest two are 1e-5 apart.
        """
        freedom = 0
        for producer in space.producers:
            if producer.map in self.sketches:
                freedom += max(0, self.sketches[producer.map][1].freedom * producer.repeat - 1)
        for stage in space.stages:
            if stage.kind == "depthwise":
                freedom += shape_of(self.tensors, stage.params["weight"])[1:].numel() - 1
        if nearest(space.width, freedom) < self.tolerance.equal:
            freedom += sum(_varying(stack.data) for stack in signature.stacks if stack.data.shape[2] == 1)
        return min(self.tolerance.equal, nearest(space.width, freedom))


def _varying(blocks: Array) -> int:
    """How many of these numbers differ from channel to channel by more than their sign."""
    size = np.abs(blocks[..., 0])
    return int((np.abs(size - size.mean(axis=1, keepdims=True)).max(axis=1) > 1e-3).sum())


def _tensors(arrays: Mapping[int, Array]) -> dict[int, Tensor]:
    return {key: torch.from_numpy(array) for key, array in arrays.items()}


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
    return Classes(everyone, none, none, {}, {}, zero, doubt=zero)


def _factors(signature: Signature, leader: Array) -> tuple[dict[int, Array], dict[int, Array]]:
    """By tap: each channel relative to its leader, and its scale, 1 where nothing entered."""
    factors, safe = {}, {}
    for tap, scale in signature.scales.items():
        entered = scale != 0
        safe[tap] = np.where(entered, scale, 1.0)
        factors[tap] = np.where(entered & entered[leader], scale / safe[tap][leader], 1.0)
    return factors, safe


def _add_constants(
    signature: Signature,
    space: Space,
    graph: ChannelGraph,
    read: Mapping[int, Array],
    constant: Array,
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
        values = np.where(constant, np.array([read[p] for p in points]), 0.0).T
        largest = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)[:, 0]
        size = np.linalg.norm(values, axis=1) * np.sign(largest)
        direction = values / np.where(size != 0, size, 1.0)[:, None]
        absent = np.ones_like(size) if tap in graph.fixed_taps else np.zeros_like(size)
        signature.scales[tap] = np.where(constant, size, signature.scales.get(tap, absent))
        signature.stacks.append(Stack(direction[None], None, True))
