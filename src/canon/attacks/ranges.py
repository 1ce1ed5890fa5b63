"""What range values have, as far as the graph alone can tell, and which channels that can switch off for ever.

A channel whose filter is nowhere positive, on inputs that are never negative, gives nothing above its bias. Where the
activation behind it is zero below some value, that channel is dead, although no number in it is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from canon.describe.curves import Curves
from canon.graph import ChannelGraph, Space, Stage

Level = Literal["zero", "low", "under"] | None
"""A dead channel at a point: exactly zero; as low as its shift is chosen; not above zero; or None, anything."""


def never_negative(graph: ChannelGraph, curves: Curves) -> frozenset[int]:
    """The points at which no channel is ever negative, whatever its parameters are."""
    found: set[int] = set()
    for space in graph.spaces:
        for stage in space.stages:
            if _stays_positive(stage, [point in found for point in stage.inputs], curves):
                found.add(stage.output)
    return frozenset(found)


def _stays_positive(stage: Stage, given: Sequence[bool], curves: Curves) -> bool:
    if stage.kind in ("add", "mul"):
        return all(given)
    if stage.kind == "slope":
        return given[0]
    if stage.kind != "activation" or stage.reach == "other":
        return False
    if stage.reach != "pointwise":
        return given[0]
    curve = curves.of(stage.function)
    return curve.positive or (given[0] and curve.rises)


@dataclass(frozen=True, eq=False)
class Depths:
    """How channels of one space can be switched off."""

    space: Space
    curves: Curves
    biased: frozenset[int]
    """Points of producers with a bias."""

    @cached_property
    def threshold(self) -> float:
        """Below this, every activation of the space that has a floor is zero."""
        floors = [self.curves.of(s.function).floor for s in self.space.stages if s.kind == "activation"]
        return min([0.0, *(floor for floor in floors if floor is not None)])

    @cached_property
    def levels(self) -> dict[int, Level]:
        """What a channel that is switched off is at every point."""
        found: dict[int, Level] = {p.point: "low" if p.point in self.biased else "under" for p in self.space.producers}
        for stage in self.space.stages:
            found[stage.output] = self._after(stage, [found.get(point) for point in stage.inputs])
        return found

    @property
    def obstacle(self) -> str | None:
        """Why no channel can be switched off here; None: it can."""
        names = [name for stage in self.space.stages for name in stage.params.values()]
        if len(names) != len(set(names)):
            return "a layer that is called twice"
        if any(self.levels.get(consumer.point) != "zero" for consumer in self.space.consumers):
            return "no activation that is zero below some value stands before every reader"
        return None

    def _after(self, stage: Stage, given: Sequence[Level]) -> Level:
        if stage.kind == "mul":
            return "zero" if "zero" in given else None
        if None in given:
            return None
        if stage.kind == "add":
            return "low" if "low" in given else "under" if "under" in given else "zero"
        level = given[0]
        if stage.kind == "norm":
            return "zero" if level == "zero" else "low"
        if stage.kind != "activation":
            return level if level == "zero" else None
        if stage.reach != "pointwise":
            return level if level == "zero" else "under" if stage.reach == "mean" else None
        return self._activated(stage, level)

    def _activated(self, stage: Stage, level: Level) -> Level:
        curve = self.curves.of(stage.function)
        if level == "zero":
            return "zero" if curve.origin == 0 else None
        reached = curve.floor == 0 or (curve.floor is not None and level == "low")
        return "zero" if reached else None
