"""Where a channel without input is null: the constant it becomes at every point of a space.

Stages with a shift of their own (norm, depthwise, shift) are taken to be given the shift that makes their output zero;
`parameters` does that. What is left are functions: `relu(0) = 0` is fine, `sigmoid(0) = ½` is not, unless a gate
multiplies it by zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from canon.graph import ChannelGraph, Space, Stage

Known = dict[tuple[object, float], float]
"""What functions make of values, so that each is asked once: one layer may serve many spaces."""


def constants(graph: ChannelGraph, space: Space, known: Known) -> dict[int, float]:
    """The value of a channel without input at every point; NaN where it is unknown or not constant."""
    values = {producer.point: 0.0 for producer in space.producers}
    for stage in space.stages:
        values[stage.output] = _after(graph, stage, [values.get(point, math.nan) for point in stage.inputs], known)
    return values


def zero_arrives(space: Space, values: Mapping[int, float]) -> bool:
    """Whether every consumer reads zero."""
    return all(values[consumer.point] == 0 for consumer in space.consumers)


def _after(graph: ChannelGraph, stage: Stage, given: list[float], known: Known) -> float:
    value = given[0]
    if stage.kind in ("norm", "instance_norm"):
        return 0.0 if not math.isnan(value) else math.nan
    if stage.kind in ("depthwise", "scale", "slope", "shift"):
        return 0.0 if value == 0 else math.nan
    if stage.kind == "add":
        return sum(given)
    if stage.kind == "mul":
        return 0.0 if 0 in given else math.prod(given)
    if not stage.keeps_constants and value != 0:
        return math.nan
    if stage.function is None:
        tap = graph.taps[stage.output]
        homogeneous = graph.taps[stage.inputs[0]] == tap and tap not in graph.fixed_taps
        return 0.0 if homogeneous and value == 0 else math.nan
    if (stage.function, value) not in known:
        known[stage.function, value] = float(stage.function(torch.tensor([value], dtype=torch.float64))[0])
    return known[stage.function, value]
