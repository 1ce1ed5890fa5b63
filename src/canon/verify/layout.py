"""A reference's layout: what each of its channels computes, in the order in which a model is to be compared with it.

Input coordinates are fixed, so the first spaces can be described; those describe the next. A residual connection
makes a space wait for itself: it is then described by the producers that are available, and once more by all of them
at the end. Channels that cannot be told apart yet share one coordinate, so that nothing that follows depends on their
order; when the spaces behind have told them apart, the space is described again. Which steps this takes depends on
the reference alone, so a file with its steps replaces the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from canon.describe import SKETCH, Array, Coordinates, cluster
from canon.errors import KeyFileError, VerificationError
from canon.graph import ChannelGraph, Space
from canon.graph.mapped import keeper
from canon.verify.architecture import Architecture
from canon.verify.side import Description, Part, Side, blocks, movable
from canon.verify.traced import Traced

TIE: Final = 1e-5
"""Channels of the reference that differ by less are not told apart by their signatures alone."""


@dataclass(frozen=True, eq=False)
class Step:
    """One space, described once."""

    space: int
    maps: tuple[int, ...]
    """The producers that it is described by."""

    features: Tensor
    """`channels x numbers`, float64: what each channel computes, free of scale."""

    scales: Mapping[int, Tensor]
    """By tap: the reference's scale of each channel."""

    leader: Tensor
    """For every channel the smallest channel that it cannot be told from."""

    label: Tensor
    """Channels were known to differ before this step if their labels do."""

    last: bool = False
    """Whether the order is known, and this step only checks it and adds scales."""

    parts: tuple[Part, ...] = ()
    """What the features are made of, where they are whole."""

    shuffled: float = 0.0
    """The cosine that rows with the same numbers in other places reach: what a stranger of that kind would."""


@dataclass(frozen=True, eq=False)
class Layout:
    """A reference's architecture and steps."""

    architecture: Architecture
    steps: tuple[Step, ...]
    numbers: int = 0
    """Numbers per channel that the features were projected to; 0: they are whole."""

    seed: int = 0
    """What rows and features are projected with."""

    settled: Literal[True] | None = True
    """Whether offsets stood in the layers that alone read them when channels were described; None, which no claim to a
    key counts as something that it holds: they stood where they were, as in older keys."""

    def tensors(self, traced: Traced) -> Mapping[str, Tensor]:
        """A model's tensors as they are to be described."""
        return traced.settled if self.settled else traced.tensors


def layout_of(model: nn.Module, example: Tensor | tuple[Any, ...]) -> Layout:
    """The layout of a model. The model is not changed."""
    return survey(Traced.of(model, example))


def survey(traced: Traced, *, numbers: int = SKETCH, seed: int = 0, settled: Literal[True] | None = True) -> Layout:
    """The layout of a model that is traced already.

    Args:
        traced: The model.
        numbers: Numbers per row. A few tell equal rows from others; rows that were changed need more.
        seed: What rows are projected with.
        settled: Whether to describe channels with offsets in the layers that alone read them.
    """
    empty = Layout(traced.architecture, (), seed=seed, settled=settled)
    with torch.no_grad():
        side = Side(traced.graph, empty.tensors(traced), numbers=numbers, seed=seed)
        return replace(empty, steps=_Surveyor(side).run())


class _Surveyor:
    """Works out the steps of one reference."""

    def __init__(self, side: Side) -> None:
        self.graph, self.side, self.keep = side.graph, side, keeper(side.tensors)
        self.steps: list[Step] = []
        self.leader: dict[int, Tensor] = {}
        self.scales: dict[int, dict[int, Tensor]] = {}
        self.seen: dict[int, tuple[object, ...]] = {}
        self.late = False
        """Whether the scale of a channel became known after something that reads it was described."""

    def run(self) -> tuple[Step, ...]:
        spaces = [space for space in self.graph.spaces if movable(space)]
        changed = True
        while changed:
            changed = False
            for space in spaces:
                changed |= self._visit(space)
        for space in spaces:
            if space.id not in self.leader:
                raise VerificationError("none of the layer's inputs can be described", where=space.name)
            if self.late:
                self._measure_again(space)
        for space in self.graph.spaces:
            self._finish(space)
        return tuple(self.steps)

    def _visit(self, space: Space) -> bool:
        """Describe a space whose channels are not all told apart and measured; True when that said something new."""
        old, known = self.leader.get(space.id), self.scales.get(space.id, {})
        measured = all(bool((scale != 0).all()) for scale in known.values())
        if old is not None and measured and bool((old == torch.arange(space.width)).all()):
            return False
        maps = self.side.available(space)
        basis = (maps, self.side.state(maps))
        if not maps or self.seen.get(space.id) == basis:
            return False
        self.seen[space.id] = basis
        label = blocks(space) if old is None else old
        found = self.side.describe(space, maps)
        leader = torch.from_numpy(cluster(found.signature, label.numpy(), TIE))
        grown = any(t not in known or bool(((known[t] == 0) & (s != 0)).any()) for t, s in found.scales.items())
        if old is not None and not grown and torch.equal(leader, old):
            return False
        self.late |= old is not None and grown
        self._store(space, maps, found, leader, label)
        return True

    def _measure_again(self, space: Space) -> None:
        """A channel's scale was not known when what reads it was described; now all are."""
        maps = tuple(dict.fromkeys(p.map for p in space.producers))
        if self.side.available(space) == maps:
            leader = self.leader[space.id]
            self._store(space, maps, self.side.describe(space, maps), leader, leader)

    def _store(self, space: Space, maps: tuple[int, ...], found: Description, leader: Tensor, label: Tensor) -> None:
        features = self.keep(found.features)
        self.steps.append(Step(space.id, maps, features, found.scales, leader, label, parts=found.parts))
        self.leader[space.id] = leader
        self.scales[space.id] = dict(found.scales)
        everyone = torch.arange(space.width)
        named = coordinates(everyone, leader, found.scales, found.scales, found.constants)
        self.side.place(space, named, frozenset(found.scales))

    def _finish(self, space: Space) -> None:
        """Describe a space by all its producers, where that was not done before; pinned spaces are only checked."""
        maps = tuple(dict.fromkeys(p.map for p in space.producers))
        last = next((step for step in reversed(self.steps) if step.space == space.id), None)
        if not maps or (last is not None and last.maps == maps):
            return
        if self.side.available(space) != maps:
            raise VerificationError("not all of the layer's inputs can be described", where=space.name)
        found = self.side.describe(space, maps)
        features = self.keep(found.features)
        if last is None:
            everyone = torch.arange(space.width)
            self.steps.append(Step(space.id, maps, features, {}, everyone, blocks(space), True, found.parts))
            return
        missing = {tap: scale for tap, scale in found.scales.items() if tap not in self.scales[space.id]}
        leader, label = last.leader, blocks(space)
        self.steps.append(Step(space.id, maps, features, missing, leader, label, True, found.parts))


def check_steps(steps: Iterable[Step]) -> None:
    """Refuse steps that describe nothing: anything would agree with them.

    Raises:
        KeyFileError: A step has no producers or no features, or all that it says is zero.
    """
    for step in steps:
        if not step.maps or not step.features.numel() or not bool(step.features.any()):
            what = "has no producers" if not step.maps else "says nothing of its channels"
            raise KeyFileError(
                f"the key describes a channel space by nothing: it {what}",
                where=f"space {step.space}",
                hint="The key is damaged, or was made by hand",
            )


def check_complete(steps: Sequence[Step], graph: ChannelGraph) -> None:
    """Refuse steps that leave out spaces of a model, or layers that make them.

    Raises:
        KeyFileError: What is left out could be anything.
    """
    described = {step.space: set(step.maps) for step in steps}
    for space in graph.spaces:
        missing = {producer.map for producer in space.producers} - described.get(space.id, set())
        if missing:
            raise KeyFileError(
                "the key leaves out a layer that makes these channels",
                where=graph.maps[min(missing)].name,
                hint="The key is damaged, or was made by hand",
            )


def coordinates(
    match: Tensor,
    leader: Tensor,
    scales: Mapping[int, Tensor],
    reference: Mapping[int, Tensor],
    constants: Mapping[int, Array],
) -> Coordinates:
    """Name channels by what they are matched with, and measure them by the reference's scales.

    Args:
        match: For every channel the reference's channel.
        leader: For every channel of the reference the one that lends its name.
        scales: By tap, of the channels.
        reference: By tap, of the reference's channels.
        constants: By point: the value of channels that are constant there, NaN for the others.
    """
    named = leader[match]
    factors = {tap: ratio.numpy() for tap, ratio in ratios(scales, reference, named).items()}
    return Coordinates(named.numpy(), leader.numel(), factors, constants)


def ratios(scales: Mapping[int, Tensor], reference: Mapping[int, Tensor], named: Tensor) -> dict[int, Tensor]:
    """By tap that both know: scale over the scale of the reference's channel, and 1 where either is zero.

    A channel without input has any scale.
    """
    taps = [tap for tap in scales if tap in reference]
    if not taps:
        return {}
    mine = torch.stack([scales[tap] for tap in taps])
    yours = torch.stack([reference[tap] for tap in taps])[:, named]
    usable = (mine != 0) & (yours != 0)
    found = torch.where(usable, mine / torch.where(usable, yours, 1.0), 1.0)
    return dict(zip(taps, found, strict=True))
