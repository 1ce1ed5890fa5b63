"""Place: what can be done to the channels of one space, found out when a primitive asks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from canon.attacks import nullity, ranges
from canon.attacks.ranges import Depths
from canon.describe import parity
from canon.describe.curves import Curves
from canon.describe.parity import Form
from canon.graph import ChannelGraph, Space


class Surroundings:
    """What is known of a whole model before any of its spaces is looked at."""

    def __init__(self, graph: ChannelGraph, ordinary: frozenset[str]) -> None:
        self.graph = graph
        self.ordinary = ordinary
        self.known: nullity.Known = {}
        self.curves = Curves()

    @cached_property
    def positive(self) -> frozenset[int]:
        """Points at which no value is ever negative."""
        return ranges.never_negative(self.graph, self.curves)

    @cached_property
    def reads(self) -> dict[str, list[bool]]:
        """By weight, which stretches of its input are never negative in any call of its layers."""
        found: dict[str, list[bool]] = defaultdict(list)
        for linear in self.graph.maps:
            here = [segment.point in self.positive for segment in linear.columns or ()]
            known = found.get(linear.weight)
            found[linear.weight] = here if known is None else [a and b for a, b in zip(here, known, strict=False)]
        return dict(found)


@dataclass(frozen=True, eq=False)
class Place:
    """One space and what its surroundings allow."""

    space: Space
    surroundings: Surroundings

    @cached_property
    def constants(self) -> dict[int, float]:
        """What a channel without input is at every point; NaN where that is unknown."""
        return nullity.constants(self.surroundings.graph, self.space, self.surroundings.known)

    @property
    def zero_arrives(self) -> bool:
        """Whether a channel without input can be made null wherever it is read."""
        return nullity.zero_arrives(self.space, self.constants)

    @cached_property
    def forms(self) -> dict[int, Form]:
        """How values depend on the filters of their channels."""
        return parity.forms(self.space, self.surroundings.curves)

    @cached_property
    def depths(self) -> Depths:
        """How channels can be switched off."""
        maps = self.surroundings.graph.maps
        biased = frozenset(p.point for p in self.space.producers if maps[p.map].bias is not None)
        return Depths(self.space, self.surroundings.curves, biased)

    @property
    def odd_obstacle(self) -> str | None:
        """Why groups with filters that are linearly dependent do not cancel here."""
        return parity.obstacle(self.space, self.forms)

    @property
    def range_obstacle(self) -> str | None:
        """Why the range of inputs switches nothing off here."""
        if self.depths.obstacle is not None:
            return self.depths.obstacle
        weights = {self.surroundings.graph.maps[p.map].weight for p in self.space.producers}
        if not any(any(self.surroundings.reads[weight]) for weight in weights):
            return "the range of its inputs is not known"
        return None

    @property
    def data_obstacle(self) -> str | None:
        """Why data cannot show what to switch off here."""
        if self.depths.obstacle is not None:
            return self.depths.obstacle
        if None in self.valves:
            return "no shift to set a threshold with"
        strange = [name for name in self.valves if name not in self.surroundings.ordinary]
        return f"no ordinary layer holds {strange[0]}" if strange else None

    @cached_property
    def valves(self) -> frozenset[str | None]:
        """The last shifts before an activation that switches channels off: of norms or layers; None: of neither."""
        maps, levels = self.surroundings.graph.maps, self.depths.levels
        makers = {stage.output: stage for stage in self.space.stages}
        biases = {p.point: maps[p.map].bias for p in self.space.producers}
        asked = [s.inputs[0] for s in self.space.stages if s.kind == "activation" and s.reach == "pointwise"]
        found: set[str | None] = set()
        for point in (queue := [point for point in asked if levels.get(point) in ("low", "under")]):
            stage = makers.get(point)
            if stage is None:
                found.add(biases[point])
            elif stage.kind == "norm":
                found.add(stage.params.get("bias", stage.params["mean"]))
            else:
                queue += [
                    given for given in stage.inputs if levels.get(given) in ("low", "under") and given not in queue
                ]
        return frozenset(found)
