"""One of the two models of an alignment: its channels, described in coordinates that both models share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.describe import (
    SKETCH,
    Array,
    Coordinates,
    Parameters,
    Program,
    RowSketch,
    Signature,
    constant_values,
    describe,
    program_of,
    sketch_rows,
)
from canon.describe.arrays import norm
from canon.graph import ChannelGraph, LinearMap, Space

ZERO: Final = 1e-12
"""Sums that are this small against what was added up are zero. Nothing is merged here, so nothing has to cancel."""


@dataclass(frozen=True, eq=False)
class Description:
    """What a space's channels compute, as far as it is known."""

    signature: Signature
    features: Tensor
    """`channels x numbers`: all blocks of the signature side by side."""

    scales: Mapping[int, Tensor]
    """By tap that lets scale pass and that something known has entered."""

    constants: Mapping[int, Array]
    """By point that something reads: the value of channels that are constant there, NaN for the others."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """What the features are made of, in order."""
        stacks = self.signature.stacks
        return tuple(Part(stack.data.shape[0], stack.data.shape[2], stack.hashed) for stack in stacks)


@dataclass(frozen=True)
class Part:
    """Neighbouring columns of features: some blocks of one size."""

    blocks: int
    numbers: int
    """Columns per block; from 2 on a block is a direction of length 1, or offsets."""

    exact: bool
    """Whether the numbers are directions and ratios of sizes; otherwise they are offsets."""

    @property
    def columns(self) -> int:
        """Columns in all."""
        return self.blocks * self.numbers


class Side:
    """A traced model whose spaces get coordinates one after the other.

    With `keep`, what is known of a layer's rows is kept: of a large model that is a lot, and rarely asked for twice.
    """

    def __init__(
        self,
        graph: ChannelGraph,
        tensors: Mapping[str, Tensor],
        *,
        numbers: int = SKETCH,
        seed: int = 0,
        keep: bool = True,
    ) -> None:
        self.graph, self.tensors, self.numbers, self.seed, self.keep = graph, tensors, numbers, seed, keep
        self.coordinates: dict[int, Coordinates] = {}
        self._parameters = Parameters(graph, tensors)
        self._programs: dict[int, Program] = {}
        self._version: dict[int, int] = {}
        self._taps: dict[int, frozenset[int]] = {}
        self._sketches: dict[int, tuple[tuple[int, ...], RowSketch]] = {}
        for space in graph.spaces:
            if not movable(space):
                self.place(space, Coordinates.plain(space.width), frozenset(graph.space_taps(space)))

    def place(self, space: Space, coordinates: Coordinates, taps: frozenset[int]) -> None:
        """Give a space coordinates; `taps` are those whose factors they hold."""
        if self._taps.get(space.id) == taps and self.coordinates[space.id].same(coordinates):
            return  # what rests on them is as good as it was
        self.coordinates[space.id] = coordinates
        self._taps[space.id] = taps
        self._version[space.id] = self._version.get(space.id, 0) + 1

    def touch(self, space: Space) -> None:
        """What reads a space was changed: it is to be described again."""
        self._version[space.id] = self._version.get(space.id, 0) + 1

    def forget(self, space: Space) -> None:
        """What makes and reads a space was changed: it is to be described again."""
        self.touch(space)
        self._parameters = Parameters(self.graph, self.tensors)
        self._programs.pop(space.id, None)
        for producer in space.producers:
            self._sketches.pop(producer.map, None)

    def state(self, maps: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """What a description by these maps rests on; it changes when their inputs' coordinates do."""
        return tuple(self._versions(self.graph.maps[index]) for index in maps)

    def available(self, space: Space) -> tuple[int, ...]:
        """The producers of a space whose inputs have coordinates."""
        found = dict.fromkeys(p.map for p in space.producers)
        return tuple(index for index in found if self._readable(self.graph.maps[index]))

    def like_owner(
        self, space: Space, maps: tuple[int, ...], distance: Callable[[Description, Tensor], Tensor]
    ) -> Description:
        """Describe a space; a sign that a small change would turn is the one that brings its channel to the owner's.

        Args:
            space: The space.
            maps: The producers that it is described by.
            distance: Of some channels of a description to the owner's.
        """
        told, turned = self.describe(space, maps), dict[int, Array]()
        for tap, unsure in told.signature.unsure.items():
            if not unsure.any():
                continue
            other, these = self.describe(space, maps, {**turned, tap: unsure}), torch.from_numpy(unsure.nonzero()[0])
            nearer = (distance(other, these) < distance(told, these)).numpy()
            if nearer.any():
                turned[tap] = unsure.copy()
                turned[tap][unsure] = nearer
                told = other if nearer.all() else self.describe(space, maps, turned)
        return told

    def describe(self, space: Space, maps: tuple[int, ...], turned: Mapping[int, Array] | None = None) -> Description:
        """Describe a space by some of its producers; with `turned`, some channels with the other sign at some taps."""
        if space.id not in self._programs:
            self._programs[space.id] = program_of(space, self.graph, self._parameters)
        sketches = {index: self._sketch(index) for index in maps}
        program = self._programs[space.id]
        signature = describe(space, self.graph, self.tensors, sketches, ZERO, program, turned, self.graph.odd_taps)
        constants = self._constants(space, sketches, program)
        if constants and len(sketches) == len({producer.map for producer in space.producers}):
            # A channel that is zero wherever it is read: it does not matter how.
            nowhere = np.asarray((np.array([*constants.values()]) == 0).all(axis=0))
            signature.stacks[:] = [stack.masked(nowhere) for stack in signature.stacks]
        closed = self.graph.closed_taps
        scales = {tap: torch.from_numpy(scale) for tap, scale in signature.scales.items() if tap not in closed}
        return Description(signature, _side_by_side(signature), scales, constants)

    def _constants(self, space: Space, sketches: Mapping[int, RowSketch], program: Program) -> dict[int, Array]:
        """By point that something reads: each channel's constant value, NaN where it changes; none where all do."""
        silent = any((norm(sketch.vectors) <= ZERO * sketch.mass).any() for sketch in sketches.values())
        if not silent and not any(b.affine is not None and (b.affine.factor == 0).any() for b in program):
            return {}
        found = constant_values(space, self.graph, self.tensors, sketches, ZERO, program=program, absent=float("nan"))
        values = found.values
        # What a layer without a bias is given counts as no offset: zero is all that may be left out.
        bare = {consumer.point for consumer in space.consumers if self.graph.maps[consumer.map].bias is None}
        return {
            point: np.where(values[point] == 0, 0.0, np.nan) if point in bare else values[point]
            for point in dict.fromkeys(consumer.point for consumer in space.consumers)
        }

    def _versions(self, linear: LinearMap) -> tuple[int, ...]:
        return tuple(self._version.get(s.space, 0) for s in linear.columns or ())

    def _readable(self, linear: LinearMap) -> bool:
        return all(
            s.space in self.coordinates and (s.tap in self._taps[s.space] or s.tap in self.graph.closed_taps)
            for s in linear.columns or ()
        )

    def _sketch(self, index: int) -> RowSketch:
        linear = self.graph.maps[index]
        versions = self._versions(linear)
        cached = self._sketches.get(index)
        if cached is None or cached[0] != versions:
            cached = (versions, self._drawn(linear))
            if self.keep:
                self._sketches[index] = cached
        return cached[1]

    def _drawn(self, linear: LinearMap) -> RowSketch:
        return sketch_rows(linear, self.graph, self.tensors, self.coordinates, self.seed, self.numbers)


def _side_by_side(signature: Signature) -> Tensor:
    """All blocks of a signature."""
    parts = [stack.data.transpose(1, 0, 2).reshape(signature.width, -1) for stack in signature.stacks]
    whole = np.concatenate(parts, axis=1) if parts else np.zeros((signature.width, 0))
    return torch.from_numpy(whole)


def movable(space: Space) -> bool:
    """Whether the order of a space's channels is free."""
    return not space.pins and bool(space.producers)


def blocks(space: Space) -> Tensor:
    """For every channel the block that it may not leave."""
    return torch.arange(space.width) // (space.width // space.groups)
