"""Constants: channels that have the same value whatever the input is, followed through a space's stages.

A row of zeros makes its bias; a norm shifts it; an activation maps it. Zero is the constant that matters most: a
channel that is zero wherever it is read is not there at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from canon.describe.parameters import Parameters
from canon.describe.program import Batch, Program, program_of
from canon.describe.sketch import RowSketch
from canon.graph import ChannelGraph, Space, Stage

NAN = float("nan")

TINY = 1e-36
"""Where float32 runs out of digits: norms of units that died in training hold such numbers, and they cancel badly."""

_Known = tuple[Tensor, Tensor]
"""Values and the sums of the magnitudes in them, `stages x width`."""


def constant_values(
    space: Space,
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    sketches: Mapping[int, RowSketch],
    zero: float,
    smallest: float = 0.0,
    program: Program | None = None,
    residue: float = 0.0,
) -> dict[int, Tensor]:
    """By point: each channel's constant value, NaN where it is not constant.

    Args:
        space: The space.
        graph: The graph it belongs to.
        tensors: The model's tensors by name.
        sketches: By map index. A producer without a sketch counts as zero.
        zero: What counts as cancelled, relative to what was added up.
        smallest: How far off a stored number may be however small it is. Float16 knows nothing below 6e-8, and the
            norms of real networks hold such numbers.
        program: The space's program, where it is at hand.
        residue: Where a bias is all there is of a channel, it is zero if it is this small against the layer's largest
            bias or row: folding a norm leaves such numbers of a sum that cancelled.
    """
    width = space.width
    known: dict[int, _Known] = {}
    for producer in space.producers:
        sketch = sketches.get(producer.map)
        nothing = torch.zeros(1, width, dtype=torch.float64)
        if sketch is None:
            known[producer.point] = (nothing, nothing)
            continue
        rows = slice(producer.offset, producer.offset + width * producer.repeat)
        vectors = sketch.vectors[rows].view(width, -1)
        mass = torch.linalg.vector_norm(sketch.mass[rows].view(width, -1), dim=1)
        silent = torch.linalg.vector_norm(vectors, dim=1) <= zero * mass
        offset = sketch.offset[rows].view(width, -1)
        if producer.repeat > 1:
            silent &= (offset == 0).all(dim=1)
        value = torch.where(silent, offset[:, 0], NAN)
        if residue and graph.maps[producer.map].bias is not None:
            swallowed = residue * max(float(sketch.offset.abs().max()), float(sketch.mass.max()))
            value = torch.where(value.abs() <= swallowed, 0.0, value)
        known[producer.point] = (value[None], sketch.offset_mass[rows].view(width, -1)[None, :, 0])
    if program is None:
        program = program_of(space, graph, Parameters(graph, tensors))
    for batch in program:
        value, mass = _through(batch, known, graph)
        floor = max(smallest, TINY)
        gain = 2.0 if batch.affine is None else 1 + batch.affine.factor.abs().amax(dim=2)
        swallowed = residue * _largest(batch) if batch.first.kind == "depthwise" else 0.0
        value = torch.where(value.abs() <= zero * mass + floor * gain + swallowed, 0.0, value)
        if len(batch.stages) == 1:
            known[batch.first.output] = (value, mass)
            continue
        for stage, *pair in zip(batch.stages, value.split(1), mass.split(1), strict=True):
            known[stage.output] = (pair[0], pair[1])
    return {point: value[0] for point, (value, _) in known.items()}


def _largest(batch: Batch) -> float:
    """The largest bias or kernel of a depthwise layer; zero where it has no bias."""
    if "bias" not in batch.params:
        return 0.0
    kernels = torch.linalg.vector_norm(batch.params["weight"], dim=1)
    return max(float(batch.params["bias"].abs().max()), float(kernels.max()))


def _given(known: Mapping[int, _Known], points: Sequence[int]) -> _Known:
    """What is known of some points, `points x width`, or `1 x width` where all are one."""
    unique = list(dict.fromkeys(points))
    if len(unique) == 1:
        return known[unique[0]]
    return torch.cat([known[p][0] for p in points]), torch.cat([known[p][1] for p in points])


def _through(batch: Batch, known: Mapping[int, _Known], graph: ChannelGraph) -> _Known:
    stage = batch.first
    x, mass = _given(known, [stage.inputs[0] for stage in batch.stages])
    if batch.affine is not None:
        factor, shift, added = batch.affine.factor, batch.affine.shift, batch.affine.mass
        if stage.repeat > 1:
            return torch.full(shift.shape[:2], NAN, dtype=torch.float64), torch.zeros(shift.shape[:2]).double()
        factor, shift, added = factor.squeeze(2), shift.squeeze(2), added.squeeze(2)
        # A factor of zero hides even what is not constant.
        passed = torch.where(factor == 0, 0.0, factor * x)
        return passed + shift, factor.abs() * mass + added
    if stage.kind == "activation":
        x = _activated(batch.stages, x, graph)
        return x, torch.zeros_like(x)
    if stage.kind in ("add", "mul"):
        other, others = known[stage.inputs[1]]
        if stage.kind == "add":
            return x + other, mass + others
        return torch.where((x == 0) | (other == 0), 0.0, x * other), torch.zeros_like(mass)
    if stage.kind == "slope":
        return torch.where(x >= 0, x, x * batch.params["weight"].mean(1)), torch.zeros_like(mass)
    return _weighted(stage, batch.params, x, mass)


def _activated(stages: Sequence[Stage], x: Tensor, graph: ChannelGraph) -> Tensor:
    """Constants behind each activation; functions are asked about constant channels alone."""
    result = torch.full((len(stages), x.shape[1]), NAN, dtype=torch.float64)
    still = torch.nonzero(~x.isnan().all(dim=0)).flatten()
    if still.numel() == 0:
        return result
    given = x.index_select(1, still).expand(len(stages), -1)
    result[:, still] = torch.stack([_value(stage, row, graph) for stage, row in zip(stages, given, strict=True)])
    return result


def _value(stage: Stage, x: Tensor, graph: ChannelGraph) -> Tensor:
    if stage.keeps_constants and stage.function is not None:
        with torch.no_grad():
            return torch.where(x.isnan(), NAN, stage.function(x.nan_to_num()).double())
    # What moves with the position keeps zero where it is known to: as a function, or because it lets scale pass.
    tap = graph.taps[stage.output]
    homogeneous = graph.taps[stage.inputs[0]] == tap and tap not in graph.fixed_taps and not stage.keeps_constants
    keeps_zero = homogeneous or (stage.function is not None and bool((stage.function(torch.zeros_like(x)) == 0).all()))
    return torch.where(x == 0, x, NAN) if keeps_zero else torch.full_like(x, NAN)


def _weighted(stage: Stage, params: Mapping[str, Tensor], x: Tensor, mass: Tensor) -> _Known:
    """Depthwise kernels, layer scales, shifts and instance norms."""
    if stage.kind == "instance_norm":
        x, mass = torch.where(x.isnan(), x, 0.0), torch.zeros_like(mass)
    elif "weight" in params:
        total = params["weight"].sum(1)
        scaled = x * total if stage.keeps_constants and stage.repeat == 1 else torch.full_like(x, NAN)
        absent = (x == 0) | (params["weight"] == 0).all(dim=1)
        x = torch.where(absent, 0.0, scaled)
        mass = mass * total.abs()
    if "bias" in params:
        bias = params["bias"]
        if bias.shape[1] == 1:
            x, mass = x + bias[:, 0], mass + bias[:, 0].abs()
        else:
            x = torch.where((bias == 0).all(dim=1), x, NAN)
    return x, mass
