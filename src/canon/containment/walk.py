"""The walk: the owner's spaces one after the other, each told in coordinates that name the owner's channels.

What a channel of the suspect reads of channels that are nobody's is left out, and what it reads of several copies of
one channel adds up. So a space is compared as if nothing had been added, and its own surplus falls out in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.containment.constants import join_constants
from canon.containment.matching import LEAST, Accepted, Pairs, accept, chance, compare
from canon.containment.voting import by_one_direction
from canon.containment.yardstick import Yardstick
from canon.describe import Array, Coordinates
from canon.errors import KeyFileError
from canon.graph import ChannelGraph, Space
from canon.verify.layout import Step, check_complete, ratios
from canon.verify.portrait import Portrait
from canon.verify.side import Description, Side, blocks, movable

ROUNDING: Final = 5e-7
"""A factor this near to 1 is 1, so that what was not scaled stays bit for bit."""

GRAIN: Final = 2e-2
"""The same where the owner's scales come from the portrait of a key."""

USUAL: Final = 0.8
LARGEST: Final = 8.0
"""Factors as near to 1 as rows are to the owner's, in units of that angle: the median of a space, and all of it."""

IN_PLACE: Final = 0.9
"""Channels that are taken in their places must be as like the owner's as this. Networks that only have first weights in
common are like it there too, and less so."""

FEW: Final = 0.3
"""Where a smaller share is found distinctly, every direction is asked alone."""

RELAPSE: Final = 0.8
"""A match by more layers counts if it finds at least this part of what fewer layers found distinctly."""


@dataclass(eq=False)
class Found:
    """What is known of one space after a sweep."""

    accepted: Accepted
    pairs: Pairs
    yardstick: Yardstick
    bar: float
    leader: Tensor
    features: Tensor
    """For every channel of the owner's: what is known of the suspect's channel that is most like it; float32."""

    silent: Tensor
    """For every channel of the owner's: whether nothing that reads it sees it change."""

    grain: float = ROUNDING
    """How exactly the owner's scales are known."""

    factors: dict[int, Tensor] = field(default_factory=dict)
    """By tap: the suspect's channel over the owner's."""

    mirror: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """For every channel of the owner's the suspect's channel that is its mirror image, or -1; empty: not looked for."""

    mirror_gains: dict[int, Tensor] = field(default_factory=dict)
    """By tap: what makes the owner's channel of its mirror image's row."""

    @property
    def mirrored(self) -> bool:
        """Whether any row comes from a mirror image."""
        return bool((self.mirror >= 0).any())

    @cached_property
    def settled(self) -> dict[int, Tensor]:
        """Factors, with 1 where they are 1 as far as can be told: order alone was changed, or nothing."""
        here = self.accepted.match >= 0
        angle = (2 * (1 - self.pairs.cosine).clamp(min=0)).sqrt().clamp(min=self.grain)
        single = int(here.sum()) == int(self.accepted.found.sum())
        settled = {}
        for tap, factor in self.factors.items():
            gap = (factor - 1).abs()
            near = gap[here] / angle[here]
            if single and near.numel() and float(near.median()) <= USUAL and float(near.max()) <= LARGEST:
                settled[tap] = torch.ones_like(factor)
            else:
                settled[tap] = factor.masked_fill(gap <= ROUNDING, 1.0).masked_fill(~here, 1.0)
        return settled

    @property
    def rescaled(self) -> frozenset[int]:
        """Taps at which channels are brought to the owner's scale."""
        return frozenset(tap for tap, factor in self.settled.items() if not bool((factor == 1).all()))


@dataclass(frozen=True, eq=False)
class Measured:
    """What is kept of a description when channels were compared by it: features take more memory than layers do."""

    scales: Mapping[int, Tensor]
    constants: Mapping[int, Array]


class Walk:
    """Sweeps over the owner's steps.

    In spaces that are `in_place` every channel is taken for the one at its place, as in a pinned one.
    """

    def __init__(
        self,
        graph: ChannelGraph,
        tensors: Mapping[str, Tensor],
        portrait: Portrait,
        in_place: frozenset[int] = frozenset(),
    ) -> None:
        self.graph, self.portrait, self.in_place = graph, portrait, in_place
        self.side = Side(graph, tensors, numbers=portrait.numbers, seed=portrait.seed)
        self.yardsticks = [Yardstick.of(step) for step in portrait.steps]
        self.final = {step.space: index for index, step in enumerate(portrait.steps)}
        self.found: dict[int, Found] = {}
        self._measured: dict[tuple[int, tuple[int, ...]], tuple[object, Measured]] = {}
        self._seen: dict[int, tuple[object, ...]] = {}
        self.scales: dict[int, dict[int, Tensor]] = {}
        for step in portrait.steps:
            self.scales.setdefault(step.space, {}).update(step.scales)

    def run(self) -> dict[int, Found]:
        """Two sweeps: the second knows all layers, and corrects the first.

        Raises:
            KeyFileError: The steps do not fit the network.
        """
        check_complete(self.portrait.steps, self.graph)
        self._sweep({})
        self._sweep(self.found)
        return self.found

    def _sweep(self, known: Mapping[int, Found]) -> None:
        self.found = {}
        for index, step in enumerate(self.portrait.steps):
            space = self._space(step)
            basis = (index, self.side.state(step.maps))
            measured, told = self._told(step, space)
            old = known.get(space.id)
            if (old is None or index == self.final[space.id]) and self._seen.get(space.id) != basis:
                whole = self.side.describe(space, step.maps) if told is None else told
                self._match(index, step, space, whole, self.found.get(space.id, old))
                self._seen[space.id] = basis
            elif space.id not in self.found:
                assert old is not None, "what rests on the same coordinates was matched before"
                self.found[space.id] = replace(old, factors={})
            if movable(space):
                self._place(step, space, measured)

    def _told(self, step: Step, space: Space) -> tuple[Measured, Description | None]:
        """What a step says of the suspect; scales alone where nothing that it rests on has changed since."""
        state, place = self.side.state(step.maps), (space.id, step.maps)
        if place in self._measured and self._measured[place][0] == state:
            return self._measured[place][1], None
        told = self.side.describe(space, step.maps)
        measured = Measured(told.scales, told.constants)
        self._measured[place] = (state, measured)
        return measured, told

    def _space(self, step: Step) -> Space:
        """A key comes from a file, and may ask for what this network does not have."""
        space = self.graph.spaces[step.space] if step.space < len(self.graph.spaces) else None
        taps = () if space is None else set(self.graph.space_taps(space)) - self.graph.fixed_taps
        if (
            space is None
            or not set(step.maps) <= set(self.side.available(space))
            or not set(step.scales) <= set(taps)
            or (movable(space) and step.last and space.id not in self.found)
            or (not movable(space) and not step.last)
        ):
            raise _unfitting(space)
        return space

    def features(self, step: Step, space: Space, told: Description) -> Tensor:
        """A space's features as the portrait has them."""
        features = self.portrait.features(step, told.features, told.parts)
        if features.shape[1] != step.features.shape[1] or not step.scales.keys() <= told.scales.keys():
            raise _unfitting(space)
        return features

    def _match(self, index: int, step: Step, space: Space, told: Description, before: Found | None) -> None:
        """Match a space; what fewer of its layers told more distinctly stands, for one of them may be replaced."""
        yardstick, features = self.yardsticks[index], self.features(step, space, told)
        channels = len(step.label)
        if channels % space.groups:
            raise _unfitting(space)
        free = movable(space) and space.id not in self.in_place
        if free:
            own = torch.arange(channels) // (channels // space.groups)
            pairs = compare(yardstick, features, blocks(space), own, step.leader, self._flips(space))
        else:
            pairs = _given(yardstick, features)
        bar = max(chance(yardstick.dimension, channels), step.shuffled)
        if space.id in self.in_place:
            bar = max(bar, IN_PLACE)
        accepted = accept(pairs, step.leader, bar, LEAST if free else -1.0)
        if free:
            labels = blocks(space), own
            pairs, accepted = join_constants(pairs, accepted, yardstick, step, features, told.scales, labels)
            if accepted.told < FEW * channels:
                pairs, accepted = by_one_direction(step, features, (*labels, self._flips(space)), pairs, accepted)
        if before is not None and accepted.told < RELAPSE * before.accepted.told:
            pairs, accepted = before.pairs, before.accepted
        features = _best(features, accepted, pairs, step)
        grain = GRAIN if self.portrait.reduced else ROUNDING
        factors = self.found[space.id].factors if space.id in self.found else {}
        self.found[space.id] = Found(
            accepted, pairs, yardstick, bar, step.leader, features, self._silent(space, yardstick), grain, factors
        )

    def _silent(self, space: Space, yardstick: Yardstick) -> Tensor:
        """Which of the owner's channels change nowhere where they are read: nothing enters, or nothing gets through."""
        if not space.consumers:
            return yardstick.still
        scales, taps = self.scales[space.id], self.graph.taps
        dead: dict[int, Tensor] = {}

        def at(point: int, before: Tensor) -> Tensor:
            scale = scales.get(taps[point])
            return before if scale is None else before | (scale == 0)

        for producer in space.producers:
            dead[producer.point] = at(producer.point, yardstick.still)
        for stage in space.stages:
            before = torch.stack([dead.get(point, yardstick.still) for point in stage.inputs]).all(dim=0)
            dead[stage.output] = at(stage.output, before)
        return torch.stack([dead.get(c.point, yardstick.still) for c in space.consumers]).all(dim=0)

    def _flips(self, space: Space) -> bool:
        """Whether the sign of all that a channel is may be turned: a signed tap that no norm behind it settles."""
        free = self.graph.signed_taps - self.graph.fixed_taps
        read = {self.graph.taps[stage.inputs[0]] for stage in space.stages if stage.kind == "norm"}
        return any(tap in free and tap not in read for tap in self.graph.space_taps(space))

    def _place(self, step: Step, space: Space, told: Measured) -> None:
        found = self.found[space.id]
        match = found.accepted.match
        member = match.clamp(min=0)
        sign = torch.where(found.pairs.flipped, -1.0, 1.0).double()
        signed = self.graph.signed_taps

        def against(named: Tensor) -> dict[int, Tensor]:
            found = ratios(told.scales, step.scales, named)
            if space.id in self.in_place:
                return {tap: torch.ones_like(factor) for tap, factor in found.items()}
            return {tap: factor * sign if tap in signed else factor for tap, factor in found.items()}

        found.factors.update(against(member))
        if not step.last:
            leader = step.leader[member]
            # What is nobody's has no factor: whichever it was given, nothing that reads it would have changed.
            factors = {tap: torch.where(match >= 0, f, 1.0).numpy() for tap, f in against(leader).items()}
            index = torch.where(match >= 0, leader, -1).numpy().astype(np.int64)
            named = Coordinates(index, len(step.label), factors, told.constants)
            self.side.place(space, named, frozenset(factors))


def _best(features: Tensor, accepted: Accepted, pairs: Pairs, step: Step) -> Tensor:
    """For every channel of the owner's the features of its best match, with the owner's sign."""
    at = accepted.best.clamp(min=0)
    sign = torch.where(pairs.flipped, -1.0, 1.0).double()[at, None]
    odd = torch.cat([torch.full((part.columns,), part.numbers > 1 or not part.exact) for part in step.parts])
    return (features[at] * torch.where(odd, sign, 1.0)).float()


def _unfitting(space: Space | None) -> KeyFileError:
    return KeyFileError(
        "the key describes a channel space that the model does not have",
        where=None if space is None else space.name,
        hint="The key is damaged, or was made by hand",
    )


def _given(yardstick: Yardstick, features: Tensor) -> Pairs:
    """A pinned space: every channel is compared with the one at its place."""
    ours = yardstick.measure(features)
    everyone = torch.arange(ours.shape[0])
    if ours.shape[0] != yardstick.owner.shape[0]:
        none = torch.full((ours.shape[0],), -2.0, dtype=torch.float64)  # another number of outputs: another task
        return Pairs(torch.zeros_like(everyone), none, none, torch.zeros_like(everyone, dtype=torch.bool))
    cosine = (ours.double() * yardstick.owner.double()).sum(dim=1)
    none = torch.zeros_like(cosine)
    return Pairs(everyone, cosine, none, none.bool())
