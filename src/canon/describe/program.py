"""A space's stages as a short program: stages that do not wait for each other go through it together.

In a DenseNet every later layer has a norm and an activation of its own on each space, sixty and more; one step of the
program takes all of them at once, with their parameters side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from canon.describe.arrays import Array
from canon.describe.parameters import Affine, Parameters
from canon.graph import ChannelGraph, Space, Stage

TOGETHER = ("norm", "activation")
"""Kinds of which many may go together."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Stages of one kind, none of which waits for another, and no two of which make one tap."""

    stages: tuple[Stage, ...]
    params: Mapping[str, Array]
    """By role, `width x entries`, of a stage that stands alone."""

    affine: Affine | None
    """Norms as `factor·x + shift`, each figure `stages x width x repeat`."""

    @property
    def first(self) -> Stage:
        """The stage that all others are like."""
        return self.stages[0]


Program = tuple[Batch, ...]


def program_of(space: Space, graph: ChannelGraph, parameters: Parameters) -> Program:
    """The steps of a space, in an order in which every stage comes after what it reads."""
    level = {producer.point: 0 for producer in space.producers}
    found: dict[tuple[object, ...], list[Stage]] = {}
    taps: dict[tuple[object, ...], set[int]] = {}
    for index, stage in enumerate(space.stages):
        depth = 1 + max((level.get(point, 0) for point in stage.inputs), default=0)
        level[stage.output] = depth
        tap = graph.taps[stage.output]
        key: tuple[object, ...] = (depth, index, stage.kind)
        if stage.kind in TOGETHER:
            key = (depth, -1, stage.kind, stage.repeat, stage.keeps_constants)
            while stage.kind == "norm" and tap in taps.setdefault(key, set()):
                key = (*key, 0)
            taps.setdefault(key, set()).add(tap)
        found.setdefault(key, []).append(stage)
    order = sorted(found, key=lambda key: key[0])  # type: ignore[arg-type, return-value]
    return tuple(_batch(tuple(found[key]), space, parameters) for key in order)


def _batch(stages: tuple[Stage, ...], space: Space, parameters: Parameters) -> Batch:
    if stages[0].kind != "norm":
        return Batch(stages, parameters.of(stages[0], space), None)
    each = [parameters.affine(stage, space) for stage in stages]
    if len(each) == 1:
        return Batch(stages, {}, Affine(each[0].factor[None], each[0].shift[None], each[0].mass[None]))
    factors, shifts, masses = zip(*((one.factor, one.shift, one.mass) for one in each), strict=True)
    return Batch(stages, {}, Affine(np.array(factors), np.array(shifts), np.array(masses)))
