"""Constants: channels that have the same value whatever the input is, followed through a space's stages.

A row of zeros makes its bias; a norm shifts it; an activation maps it. Zero is the constant that matters most: a
channel that is zero wherever it is read is not there at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from canon.describe.arrays import Array, norm, quiet
from canon.describe.parameters import Parameters
from canon.describe.program import Batch, Program, program_of
from canon.describe.sketch import RowSketch
from canon.graph import ChannelGraph, Space, Stage

NAN = float("nan")

TINY = 1e-36
"""Where float32 runs out of digits: norms of units that died in training hold such numbers, and they cancel badly."""


@dataclass(frozen=True, eq=False)
class Constants:
    """What never moves in a space."""

    values: dict[int, Array]
    """By point: each channel's constant value, NaN where it is not constant."""

    blur: Array
    """Per channel: the largest share of what was added up in it that was taken for zero."""


_Known = tuple[Array, Array]
"""Values and the sums of the magnitudes in them, `stages x width`."""


@quiet
def constant_values(
    space: Space,
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    sketches: Mapping[int, RowSketch],
    zero: float,
    smallest: float = 0.0,
    program: Program | None = None,
    residue: float = 0.0,
    absent: float = 0.0,
) -> Constants:
    """Each channel's constant value at every point.

    Args:
        space: The space.
        graph: The graph it belongs to.
        tensors: The model's tensors by name.
        sketches: By map index.
        zero: What counts as cancelled, relative to what was added up.
        smallest: How far off a stored number may be however small it is. Float16 knows nothing below 6e-8, and the
            norms of real networks hold such numbers.
        program: The space's program, where it is at hand.
        residue: Where a bias is all there is of a channel, it is zero if it is this small against the layer's largest
            bias or row: folding a norm leaves such numbers of a sum that cancelled.
        absent: What a producer without a sketch counts as: zero, or NaN where it is not known yet.
    """
    width = space.width
    known: dict[int, _Known] = {}
    blur = np.zeros(width)
    for producer in space.producers:
        sketch = sketches.get(producer.map)
        if sketch is None:
            known[producer.point] = (np.full((1, width), absent), np.zeros((1, width)))
            continue
        rows = slice(producer.offset, producer.offset + width * producer.repeat)
        vectors = sketch.vectors[rows].reshape(width, -1)
        mass = norm(sketch.mass[rows].reshape(width, -1))
        size = norm(vectors)
        silent = sketch.silent(size, mass, zero)
        blur = np.maximum(blur, np.where(silent & (mass > 0), size / mass, 0.0))
        offset = sketch.offset[rows].reshape(width, -1)
        if producer.repeat > 1:
            silent &= (offset == 0).all(axis=1)
        value = np.where(silent, offset[:, 0], NAN)
        if residue and graph.maps[producer.map].bias is not None:
            swallowed = residue * max(np.abs(sketch.offset).max(), sketch.mass.max())
            value = np.where(np.abs(value) <= swallowed, 0.0, value)
        known[producer.point] = (value[None], sketch.offset_mass[rows].reshape(width, -1)[None, :, 0])
    if program is None:
        program = program_of(space, graph, Parameters(graph, tensors))
    floor = max(smallest, TINY)
    for batch in program:
        value, mass = _through(batch, known, graph)
        gain = 2.0 if batch.affine is None else 1 + np.abs(batch.affine.factor).max(axis=2)
        swallowed = residue * _largest(batch) if batch.first.kind == "depthwise" else 0.0
        gone = np.abs(value) <= zero * mass + (floor * gain + swallowed)
        share = np.where(np.abs(value) <= zero * mass, np.abs(value) / mass, 0.0)
        blur = np.maximum(blur, np.nan_to_num(share).max(axis=0))
        value = np.where(gone, 0.0, value)
        for index, stage in enumerate(batch.stages):
            known[stage.output] = (value[index : index + 1], mass[index : index + 1])
    return Constants({point: value[0] for point, (value, _) in known.items()}, blur)


def _largest(batch: Batch) -> float:
    """The largest bias or kernel of a depthwise layer; zero where it has no bias."""
    if "bias" not in batch.params:
        return 0.0
    return float(max(np.abs(batch.params["bias"]).max(), norm(batch.params["weight"]).max()))


def _given(known: Mapping[int, _Known], points: Sequence[int]) -> _Known:
    """What is known of some points, `points x width`, or `1 x width` where all are one."""
    if len(set(points)) == 1:
        return known[points[0]]
    return np.concatenate([known[p][0] for p in points]), np.concatenate([known[p][1] for p in points])


def _through(batch: Batch, known: Mapping[int, _Known], graph: ChannelGraph) -> _Known:
    stage = batch.first
    x, mass = _given(known, [stage.inputs[0] for stage in batch.stages])
    if batch.affine is not None:
        factor, shift, added = batch.affine.factor, batch.affine.shift, batch.affine.mass
        if stage.repeat > 1:
            return np.full(shift.shape[:2], NAN), np.zeros(shift.shape[:2])
        factor, shift, added = factor[..., 0], shift[..., 0], added[..., 0]
        # A factor of zero hides even what is not constant.
        passed = np.where(factor == 0, 0.0, factor * x)
        return passed + shift, np.abs(factor) * mass + added
    if stage.kind == "activation":
        x = _activated(batch.stages, x, graph)
        return x, np.zeros_like(x)
    if stage.kind in ("add", "mul"):
        other, others = known[stage.inputs[1]]
        if stage.kind == "add":
            return x + other, mass + others
        return np.where((x == 0) | (other == 0), 0.0, x * other), np.zeros_like(mass)
    if stage.kind == "slope":
        return np.where(x >= 0, x, x * batch.params["weight"].mean(axis=1)), np.zeros_like(mass)
    return _weighted(stage, batch.params, x, mass)


def _activated(stages: Sequence[Stage], x: Array, graph: ChannelGraph) -> Array:
    """Constants behind each activation; functions are asked about constant channels alone, alike ones together."""
    result = np.full((len(stages), x.shape[1]), NAN)
    still = np.flatnonzero(~np.isnan(x).all(axis=0))
    if still.size:
        given = np.broadcast_to(x[:, still], (len(stages), still.size))
        alike: dict[object, list[int]] = {}
        for index, stage in enumerate(stages):
            alike.setdefault((stage.function, _homogeneous(stage, graph)), []).append(index)
        for same in alike.values():
            result[np.array(same)[:, None], still] = _value(stages[same[0]], given[same], graph)
    return result


def _value(stage: Stage, x: Array, graph: ChannelGraph) -> Array:
    if stage.keeps_constants and stage.function is not None:
        known = ~np.isnan(x)
        result = np.full_like(x, NAN)
        result[known] = _applied(stage, x[known])
        return result
    # What moves with the position keeps zero where it is known to: as a function, or because it lets scale pass.
    keeps_zero = _homogeneous(stage, graph) and not stage.keeps_constants
    if stage.function is not None:
        keeps_zero = keeps_zero or bool((_applied(stage, np.zeros_like(x)) == 0).all())
    return np.where(x == 0, x, NAN) if keeps_zero else np.full_like(x, NAN)


def _homogeneous(stage: Stage, graph: ChannelGraph) -> bool:
    """Whether the stage lets scale pass."""
    tap = graph.taps[stage.output]
    return graph.taps[stage.inputs[0]] == tap and tap not in graph.fixed_taps


def _applied(stage: Stage, x: Array) -> Array:
    """What the stage's function makes of some numbers."""
    assert stage.function is not None, "callers check"
    with torch.no_grad():
        return np.asarray(stage.function(torch.from_numpy(x)).double().numpy())


def _weighted(stage: Stage, params: Mapping[str, Array], x: Array, mass: Array) -> _Known:
    """Depthwise kernels, layer scales, shifts and instance norms."""
    if stage.kind == "instance_norm":
        x, mass = np.where(np.isnan(x), x, 0.0), np.zeros_like(mass)
    elif "weight" in params:
        total = params["weight"].sum(axis=1)
        scaled = x * total if stage.keeps_constants and stage.repeat == 1 else np.full_like(x, NAN)
        absent = (x == 0) | (params["weight"] == 0).all(axis=1)
        x = np.where(absent, 0.0, scaled)
        mass = mass * np.abs(total)
    if "bias" in params:
        bias = params["bias"]
        if bias.shape[1] == 1:
            x, mass = x + bias[:, 0], mass + np.abs(bias[:, 0])
        else:
            x = np.where((bias == 0).all(axis=1), x, NAN)
    return x, mass
