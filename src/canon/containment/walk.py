"""The walk: the owner's spaces one after the other, each told in coordinates that name the owner's channels.

What a channel of the suspect reads of channels that are nobody's is left out, and what it reads of several copies of
one channel adds up. So a space is compared as if nothing had been added, and its own surplus falls out in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from canon.containment.matching import LEAST, Accepted, Pairs, accept, chance, compare
from canon.containment.yardstick import Yardstick
from canon.describe import Coordinates
from canon.graph import ChannelGraph, Space
from canon.verify.layout import Layout, Step, ratios
from canon.verify.side import Description, Side, blocks, movable


@dataclass(eq=False)
class Found:
    """What is known of one space after a sweep."""

    accepted: Accepted
    pairs: Pairs
    yardstick: Yardstick
    bar: float
    leader: Tensor
    silent: Tensor
    """For every channel of the owner's: whether nothing that reads it sees it change."""

    factors: dict[int, Tensor] = field(default_factory=dict)
    """By tap: the suspect's channel over the owner's."""


class Walk:
    """Sweeps over the owner's steps."""

    def __init__(
        self, graph: ChannelGraph, tensors: Mapping[str, Tensor], layout: Layout, *, numbers: int, seed: int
    ) -> None:
        self.graph, self.tensors, self.layout = graph, tensors, layout
        self.numbers, self.seed = numbers, seed
        self.yardsticks = [Yardstick.of(step) for step in layout.steps]
        self.final = {step.space: index for index, step in enumerate(layout.steps)}
        self.found: dict[int, Found] = {}
        self.scales: dict[int, dict[int, Tensor]] = {}
        for step in layout.steps:
            self.scales.setdefault(step.space, {}).update(step.scales)

    def run(self) -> dict[int, Found]:
        """Two sweeps: the second knows all layers, and corrects the first."""
        self._sweep({})
        self._sweep(self.found)
        return self.found

    def _sweep(self, known: Mapping[int, Found]) -> None:
        side = Side(self.graph, self.tensors, numbers=self.numbers, seed=self.seed)
        self.found = {}
        for index, step in enumerate(self.layout.steps):
            space = self.graph.spaces[step.space]
            told = side.describe(space, step.maps)
            old = known.get(space.id)
            if old is None or index == self.final[space.id]:
                self._match(index, step, space, told)
            elif space.id not in self.found:
                self.found[space.id] = replace(old, factors={})
            if movable(space):
                self._place(side, step, space, told)

    def _match(self, index: int, step: Step, space: Space, told: Description) -> None:
        yardstick = self.yardsticks[index]
        channels = len(step.label)
        if movable(space):
            size = channels // space.groups
            pairs = compare(yardstick, told.features, blocks(space), torch.arange(channels) // size, step.leader,
                            self._flips(space))  # fmt: skip
        else:
            pairs = _given(yardstick, told.features)
        bar = chance(yardstick.dimension, channels)
        accepted = accept(pairs, step.leader, bar, LEAST if movable(space) else -1.0)
        factors = self.found[space.id].factors if space.id in self.found else {}
        self.found[space.id] = Found(accepted, pairs, yardstick, bar, step.leader, self._silent(space, yardstick), factors)

    def _silent(self, space: Space, yardstick: Yardstick) -> Tensor:
        scales, silent = self.scales[space.id], torch.ones_like(yardstick.still)
        for tap in {consumer.tap for consumer in space.consumers}:
            silent &= yardstick.still | (scales[tap] == 0) if tap in scales else yardstick.still
        return silent if space.consumers else yardstick.still

    def _flips(self, space: Space) -> bool:
        """Whether the sign of all that a channel is may be turned: a signed tap that no norm behind it settles."""
        free = self.graph.signed_taps - self.graph.fixed_taps
        read = {self.graph.taps[stage.inputs[0]] for stage in space.stages if stage.kind == "norm"}
        return any(tap in free and tap not in read for tap in self.graph.space_taps(space))

    def _place(self, side: Side, step: Step, space: Space, told: Description) -> None:
        found = self.found[space.id]
        match = found.accepted.match
        member = match.clamp(min=0)
        sign = torch.where(found.pairs.flipped, -1.0, 1.0).double()
        signed = self.graph.signed_taps

        def against(named: Tensor) -> dict[int, Tensor]:
            found = ratios(told.scales, step.scales, named)
            return {tap: factor * sign if tap in signed else factor for tap, factor in found.items()}

        found.factors.update(against(member))
        if not step.last:
            leader = step.leader[member]
            factors = {tap: factor.numpy() for tap, factor in against(leader).items()}
            index = torch.where(match >= 0, leader, -1).numpy().astype(np.int64)
            zeros = {point: np.where(zero, 0.0, np.nan) for point, zero in told.zeros.items()}
            side.place(space, Coordinates(index, len(step.label), factors, zeros), frozenset(factors))


def _given(yardstick: Yardstick, features: Tensor) -> Pairs:
    """A pinned space: every channel is compared with the one at its place."""
    ours = yardstick.measure(features)
    everyone = torch.arange(ours.shape[0])
    cosine = (ours.double() * yardstick.owner.double()).sum(dim=1)
    none = torch.zeros_like(cosine)
    return Pairs(everyone, cosine, none, none.bool())
