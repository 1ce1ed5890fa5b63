"""Signatures: everything that a channel of a space computes, free of the scales that the network does not see.

Walk the space in execution order. What enters a tap (a layer's row, a norm's factor, a depthwise kernel) is written as
a direction and a magnitude; the first thing to enter a tap sets the channel's scale there, and later magnitudes count
relative to it. Where a tap lets no scale pass, magnitudes count as they are. Offsets are carried through affine stages
and become part of the signature where something reads them: a consumer, or a nonlinearity.

Two channels are proportional at every tap exactly if their signatures agree, and then the ratio of their scales at a
tap is the factor between them there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from torch import Tensor

from canon.describe.arrays import Array, norm, quiet
from canon.describe.parameters import Parameters
from canon.describe.program import Batch, Program, program_of
from canon.describe.sketch import RowSketch
from canon.graph import ChannelGraph, Space

UNSURE: Final = 0.1
"""Directions whose projection is smaller than this may have it on the other side after a small change."""


@dataclass(frozen=True, eq=False)
class Stack:
    """Blocks of a signature that have one shape."""

    data: Array
    """`blocks x width x numbers`: directions, log-ratios or offsets."""

    slack: Array | None
    """Per block and channel: how much more than the tolerance rounding may have moved it; None: no more."""

    hashed: bool
    """Whether the blocks are never ill-conditioned, fit to hash on."""

    def masked(self, gone: Array) -> Stack:
        """The same without what it says of some channels."""
        slack = None if self.slack is None else np.where(gone, 1.0, self.slack)
        return Stack(np.where(gone[:, None], 0.0, self.data), slack, self.hashed)


@dataclass(eq=False)
class Signature:
    """The signatures of all channels of a space."""

    width: int
    stacks: list[Stack] = field(default_factory=list)
    """Channels agree if every block of every stack does."""

    scales: dict[int, Array] = field(default_factory=dict)
    """By tap: the scale of each channel, signed where a negative scale passes; 0 where nothing entered."""

    unsure: dict[int, Array] = field(default_factory=dict)
    """By tap whose signs nothing settles: the channels that would have the other one after a small change."""

    @property
    def blocks(self) -> list[Array]:
        """Every block, `width x numbers`."""
        return [block for stack in self.stacks for block in stack.data]

    def trust(self, share: float) -> None:
        """Rounding and noise have moved blocks by less than was allowed for."""
        if share < 1:
            self.stacks = [
                replace(s, slack=None if s.slack is None else np.maximum(s.slack * share, 1.0)) for s in self.stacks
            ]

    def distance(self, a: Array, b: Array) -> Array:
        """Largest disagreement over all blocks of channels `a[i]` and `b[i]`, slack taken off."""
        return self.distances(a, b)[0]

    def distances(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Largest disagreement over all blocks of channels `a[i]` and `b[i]`: slack taken off, and as it is."""
        worst = plain = np.zeros(a.size)
        for stack in self.stacks if a.size else ():
            gap = stack.data.take(a, axis=1) - stack.data.take(b, axis=1)
            size = np.abs(gap[..., 0]) if gap.shape[2] == 1 else norm(gap)
            plain = np.maximum(plain, size.max(axis=0))
            if stack.slack is not None:
                size = size / np.maximum(stack.slack.take(a, axis=1), stack.slack.take(b, axis=1))
            worst = np.maximum(worst, size.max(axis=0))
        return worst, plain


def _together(stacks: Sequence[Stack]) -> list[Stack]:
    """The same blocks in as few stacks as there are shapes."""
    alike: dict[tuple[int, bool], list[Stack]] = {}
    for stack in stacks:
        alike.setdefault((stack.data.shape[2], stack.hashed), []).append(stack)
    return [parts[0] if len(parts) == 1 else _joined(parts) for parts in alike.values()]


def _joined(parts: Sequence[Stack]) -> Stack:
    slack = None
    if any(part.slack is not None for part in parts):
        slack = np.concatenate([np.ones(part.data.shape[:2]) if part.slack is None else part.slack for part in parts])
    return Stack(np.concatenate([part.data for part in parts]), slack, parts[0].hashed)


class _Walk:
    """One pass over a space's program."""

    def __init__(
        self, space: Space, graph: ChannelGraph, zero: float, turned: Mapping[int, Array], odd: frozenset[int]
    ) -> None:
        self.space, self.graph, self.zero, self.turned, self.odd = space, graph, zero, turned, odd
        self.signature = Signature(space.width)
        self.magnitude: dict[int, Array] = {}
        self.offset: dict[int, tuple[Array, Array] | None] = {}
        """By known point: the offset and the sum of the magnitudes in it; None where it is nothing at all."""

        self.seen: set[int] = set()
        self.signs: dict[int, Array] = {}
        gates = {graph.taps[stage.output] for stage in space.stages if stage.kind == "mul"}
        free = (graph.signed_taps - graph.fixed_taps) | odd
        self.unsettled = (gates & free) | odd
        for stage in reversed(space.stages):  # a norm before one takes up the sign behind it
            if stage.kind == "norm" and graph.taps[stage.output] in self.unsettled:
                self.unsettled |= {graph.taps[stage.inputs[0]]} & free
        self.none = np.zeros(space.width)

    def choose_signs(self, program: Program) -> None:
        """Where a negative scale passes, take the sign that makes the factor of the norm behind, or a gain, positive.

        A sign read off the row itself would flip with the last bit of a small number.
        """
        graph = self.graph
        made = {graph.taps[producer.point] for producer in self.space.producers}
        for batch in program:
            stage, gain = batch.first, batch.params.get("weight")
            if stage.kind == "scale" and stage.repeat == 1 and gain is not None and gain.shape[1] == 1:
                given, tap = graph.taps[stage.inputs[0]], graph.taps[stage.output]
                free = tap in graph.signed_taps - graph.fixed_taps - self.unsettled - made
                if free and given in graph.fixed_taps and tap not in self.signs:
                    self.signs[tap] = np.where(gain[:, 0] < 0, -1.0, 1.0)
            if batch.affine is None or batch.first.repeat > 1:
                continue
            for index, stage in enumerate(batch.stages):
                tap = graph.taps[stage.inputs[0]]
                free = tap in graph.signed_taps and tap not in graph.fixed_taps and tap not in self.unsettled
                if free and tap not in self.signs:
                    self.signs[tap] = np.where(batch.affine.factor[index, :, 0] < 0, -1.0, 1.0)

    def enter(
        self,
        taps: Sequence[int],
        vectors: Array,
        source: Array | None,
        mass: Array | None = None,
        silent: Array | None = None,
    ) -> None:
        """`vector · source` enters each tap: a direction per channel times the scale of where it comes from.

        Args:
            taps: As many as there are vectors, all different.
            vectors: `taps x width x numbers`.
            source: Scales to multiply with, `taps x width` or `1 x width`; None: 1.
            mass: Norms of what was added up in each vector.
            silent: Where that has cancelled.
        """
        single = vectors.shape[2] == 1
        size = np.abs(vectors[..., 0]) if single else norm(vectors)
        slack = None
        if mass is not None and silent is not None:
            size = np.where(silent, 0.0, size)
            slack = np.where(size > 0, np.minimum(np.maximum(mass / size, 1.0), 20.0), 1.0)
        if single:
            direction = np.sign(vectors) if mass is None else np.where(size[..., None] > 0, np.sign(vectors), 0.0)
        else:
            direction = vectors / np.where(size > 0, size, np.inf)[..., None]
        if source is not None:
            direction = direction * np.sign(source)[..., None]
            size = size * np.abs(source)
        self._settle_signs(taps, direction)
        if any(tap in self.signs for tap in taps):
            ones = np.ones_like(self.none)
            sign = np.array([self.signs.get(tap, ones) for tap in taps])
            direction = direction * sign[..., None]
        self.signature.stacks.append(Stack(direction, slack, True))
        self._measure(taps, size, slack)

    def _settle_signs(self, taps: Sequence[int], direction: Array) -> None:
        """Where no norm settles signs, as in a branch of a gate, what enters first is turned one way.

        Which way is a projection's sign. Noise turns as many channels around as it is large, all of them `unsure`.
        """
        for index, tap in enumerate(taps):
            if tap in self.unsettled and tap not in self.signs and tap not in self.magnitude:
                numbers = direction.shape[2]
                side = direction[index] @ np.cos(1.0 + np.arange(numbers))
                self.signs[tap] = np.where((side < 0) ^ self.turned.get(tap, False), -1.0, 1.0)
                self.signature.unsure[tap] = (side != 0) & (np.abs(side) <= UNSURE)

    def _measure(self, taps: Sequence[int], size: Array, slack: Array | None) -> None:
        """Write the magnitudes down, relative to what entered the tap first."""
        ratios, slacks = [], []
        for index, tap in enumerate(taps):
            entering, first = size[index], self.magnitude.get(tap)
            if first is None:
                self.magnitude[tap] = entering
            else:
                self.magnitude[tap] = np.where(first > 0, first, entering)
            scale = self.magnitude[tap]
            if tap in self.graph.fixed_taps:
                self.signature.scales[tap] = self.signs.get(tap, np.ones_like(entering))
                ratios.append(entering)
            else:
                self.signature.scales[tap] = scale * self.signs[tap] if tap in self.signs else scale
                if first is None:
                    continue  # what sets the scale is 1 relative to it
                ratios.append(np.where(scale > 0, entering / scale, 0.0))
            slacks.append(None if slack is None else slack[index])
        if ratios:
            ratio = np.array(ratios)
            ratio = np.log(np.where(ratio > 0, ratio, 1.0))
            known = [s for s in slacks if s is not None]
            self.signature.stacks.append(Stack(ratio[..., None], np.array(known) if known else None, True))

    def observe(self, points: Iterable[int]) -> None:
        """Something reads these points: their offsets matter from here on."""
        offsets, masses, scales, signed = [], [], [], []
        for point in points:
            if point in self.seen or point not in self.offset:
                continue
            self.seen.add(point)
            known, tap = self.offset[point], self.graph.taps[point]
            if known is not None and tap in self.magnitude:
                self._scale_by_offset(tap, known[0])
                offsets.append(known[0])
                masses.append(known[1])
                scales.append(self.magnitude[tap])
                signed.append(self.signature.scales[tap])
        if not offsets:
            return
        offset, mass, scale = np.array(offsets), np.array(masses), np.array(scales)
        usable = scale > 0
        safe = np.where(usable, scale, 1.0)
        # Where no scale passes and nothing entered, the channel is this offset alone.
        ratio = np.where(np.array(signed) < 0, -offset, offset) / safe
        slack = 1 + np.minimum(np.where(usable, mass / safe, 0.0), 20.0)
        self.signature.stacks.append(Stack(np.arcsinh(ratio)[..., None], slack, False))

    def _scale_by_offset(self, tap: int, offset: Array) -> None:
        """A channel whose row has no weights is its offset, and that is then its scale."""
        magnitude = self.magnitude[tap]
        alone = (magnitude == 0) & (offset != 0)
        if tap in self.odd:
            self.signature.scales[tap] = np.where(alone, np.sign(offset), self.signature.scales[tap])
        elif tap not in self.graph.fixed_taps and alone.any():
            self.magnitude[tap] = np.where(alone, np.abs(offset), magnitude)
            self.signature.scales[tap] = np.where(alone, np.abs(offset), self.signature.scales[tap])

    def set_offset(self, points: Sequence[int], offset: Array, mass: Array) -> None:
        """Offsets of points, `points x width`; what is small against its mass is zero."""
        offset = np.where(np.abs(offset) <= self.zero * mass, 0.0, offset)
        for index, point in enumerate(points):
            self.offset[point] = (offset[index], mass[index])

    def given(self, points: Sequence[int]) -> tuple[Array, Array] | None:
        """Offsets and masses of known points, `points x width`, or `1 x width` where all are one."""
        found = [self.offset[point] for point in dict.fromkeys(points)]
        if len(found) == 1:
            only = found[0]
            return None if only is None else (only[0][None], only[1][None])
        found = [self.offset[point] for point in points]
        if all(pair is None for pair in found):
            return None
        pairs = [(self.none, self.none) if pair is None else pair for pair in found]
        return np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])

    def scale(self, points: Sequence[int]) -> Array:
        """Scales of the channels at some points, `points x width`, or `1 x width` where all share one tap."""
        taps = [self.graph.taps[point] for point in points]
        unique = list(dict.fromkeys(taps))
        # A tap that lets no scale pass has scale 1, though nothing but an activation entered it.
        absent = {tap: self.none + 1 if tap in self.graph.fixed_taps else self.none for tap in unique}
        return np.array([self.signature.scales.get(t, absent[t]) for t in (unique if len(unique) == 1 else taps)])

    def batch(self, batch: Batch) -> None:
        """One step of the program."""
        if batch.first.kind in ("add", "mul"):
            self.join(batch)
            return
        index = [i for i, stage in enumerate(batch.stages) if stage.inputs[0] in self.offset]
        if not index:
            return
        inputs = [batch.stages[i].inputs[0] for i in index]
        outputs = [batch.stages[i].output for i in index]
        if batch.first.kind == "norm":
            self.norms(batch, index, inputs, outputs)
        elif batch.first.kind == "activation":
            self.observe(inputs)
            self.offset.update(dict.fromkeys(outputs))
        else:
            self.weighted(batch)

    def norms(self, batch: Batch, index: list[int], inputs: list[int], outputs: list[int]) -> None:
        assert batch.affine is not None, "norms are affine"
        factor, shift, mass = batch.affine.factor, batch.affine.shift, batch.affine.mass
        if len(index) < len(batch.stages):
            factor, shift, mass = factor[index], shift[index], mass[index]
        if batch.first.repeat > 1:
            self.observe(inputs)
            self.enter([self.graph.taps[p] for p in outputs], factor, self.scale(inputs))
            self.signature.stacks.append(Stack(np.arcsinh(shift[..., :1]), 1 + mass[..., 0], False))
            self.offset.update(dict.fromkeys(outputs))
            return
        self.enter([self.graph.taps[p] for p in outputs], factor, self.scale(inputs))
        factor, shift, mass = factor[..., 0], shift[..., 0], mass[..., 0]
        given = self.given(inputs)
        if given is not None:
            shift, mass = factor * given[0] + shift, np.abs(factor) * given[1] + mass
        self.set_offset(outputs, shift, mass)

    def weighted(self, batch: Batch) -> None:
        """Depthwise kernels, layer scales, shifts, slopes and instance norms."""
        stage, params = batch.first, batch.params
        given, tap = stage.inputs[0], self.graph.taps[stage.output]
        known = self.offset[given]
        affine = stage.kind == "scale" or (stage.kind == "shift" and stage.keeps_constants)
        if not affine or stage.repeat > 1:
            self.observe([given])
            known = None
        if stage.kind in ("depthwise", "scale", "instance_norm") and "weight" in params:
            self.enter([tap], params["weight"][None], self.scale([given]))
            if known is not None and stage.kind == "scale":
                factor = params["weight"].sum(axis=1)
                passes = stage.keeps_constants
                known = (factor * known[0], np.abs(factor) * known[1]) if passes else known
        if stage.kind == "slope":
            self.signature.stacks.append(Stack(params["weight"][None], None, True))
        if "bias" in params:
            bias = params["bias"]
            if bias.shape[1] == 1:
                offset, mass = (self.none, self.none) if known is None else known
                known = (offset + bias[:, 0], mass + np.abs(bias[:, 0]))
            else:
                self.enter([tap], bias[None], None)
        if known is None:
            self.offset[stage.output] = None
        else:
            self.set_offset([stage.output], known[0][None], known[1][None])

    def join(self, batch: Batch) -> None:
        stage = batch.first
        known = [point for point in stage.inputs if point in self.offset]
        if not known:
            return
        if stage.kind == "mul":
            self.observe(known)
            self.offset[stage.output] = None
            return
        pairs = [pair for pair in (self.offset[point] for point in known) if pair is not None]
        if not pairs:
            self.offset[stage.output] = None
            return
        offset, mass = sum((p[0] for p in pairs), self.none), sum((p[1] for p in pairs), self.none)
        self.set_offset([stage.output], offset[None], mass[None])


@quiet
def describe(
    space: Space,
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    sketches: Mapping[int, RowSketch],
    zero: float,
    program: Program | None = None,
    turned: Mapping[int, Array] | None = None,
    odd: frozenset[int] = frozenset(),
) -> Signature:
    """The signatures of a space's channels.

    Args:
        space: The space.
        graph: The graph it belongs to.
        tensors: The model's tensors by name.
        sketches: By map index. A producer without a sketch is left out, with all that comes of it alone.
        zero: What counts as cancelled, relative to what was added up.
        program: The space's program, where it is at hand.
        turned: By tap: channels that are to have the other sign there than their rows would give them.
        odd: Fixed taps at which signs are to be found out as well.
    """
    walk = _Walk(space, graph, zero, turned or {}, odd & {*graph.space_taps(space)})
    if program is None:
        program = program_of(space, graph, Parameters(graph, tensors))
    walk.choose_signs(program)
    for producer in space.producers:
        sketch = sketches.get(producer.map)
        if sketch is None:
            continue
        rows = slice(producer.offset, producer.offset + space.width * producer.repeat)
        vectors = sketch.vectors[rows].reshape(1, space.width, -1)
        mass = sketch.mass[rows].reshape(1, space.width, -1)
        mass = mass[..., 0] if producer.repeat == 1 else norm(mass)
        walk.enter([graph.taps[producer.point]], vectors, None, mass, sketch.silent(norm(vectors), mass, zero))
        if not sketch.has_offset:
            walk.offset[producer.point] = None
        elif producer.repeat > 1:
            offset = sketch.offset[rows].reshape(1, space.width, -1)
            walk.signature.stacks.append(Stack(np.arcsinh(offset), None, False))
            walk.offset[producer.point] = None
        else:
            walk.set_offset([producer.point], sketch.offset[rows][None], sketch.offset_mass[rows][None])
    for batch in program:
        walk.batch(batch)
    walk.observe(consumer.point for consumer in space.consumers)
    walk.signature.stacks = _together(walk.signature.stacks)
    return walk.signature
