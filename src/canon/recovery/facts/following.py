"""The engine of facts that follow the forward pass: from layer to layer, and inside a space from point to point.

It knows the order and nothing of what is tracked. A fact says what a layer makes of its inputs and what a stage does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from canon.describe import Parameters
from canon.graph import LinearMap, Segment, Space, Stage
from canon.recovery.facts.subject import Subject

T = TypeVar("T")


class Following(ABC, Generic[T]):
    """What is known of all channels of a space at a point, for every point."""

    def __init__(self, subject: Subject, parameters: Parameters) -> None:
        self.subject, self.graph, self.parameters = subject, subject.graph, parameters
        self._known: dict[int, T] = {}
        self._makers = {stage.output: stage for space in self.graph.spaces for stage in space.stages}
        for index, linear in enumerate(self.graph.maps):
            for segment, made in zip(linear.rows, self.rows(index, linear), strict=True):
                self._known[segment.point] = made

    @abstractmethod
    def rows(self, index: int, linear: LinearMap) -> list[T]:
        """What a layer makes, segment by segment; its inputs are known by then."""

    @abstractmethod
    def through(self, stage: Stage, space: Space, given: list[T]) -> T:
        """What a stage makes of what is given."""

    @abstractmethod
    def unknown(self, space: Space) -> T:
        """Where nothing is known."""

    def read(self, segment: Segment) -> T:
        """What a layer reads in one segment."""
        return self.at(self.graph.spaces[segment.space], segment.point)

    def at(self, space: Space, point: int) -> T:
        """What is known at a point."""
        waiting = [point]
        while waiting:
            here = waiting[-1]
            stage = self._makers.get(here)
            if here in self._known or stage is None:
                waiting.pop()
                continue
            missing = [p for p in stage.inputs if p not in self._known and p in self._makers]
            if missing:
                waiting += missing
                continue
            given = [self._known[p] if p in self._known else self.unknown(space) for p in stage.inputs]
            self._known[here] = self.through(stage, space, given)
            waiting.pop()
        return self._known[point] if point in self._known else self.unknown(space)
