"""Constants: channels that have the same value whatever the input is, followed through a space's stages.

A row of zeros makes its bias; a norm shifts it; an activation maps it. Zero is the constant that matters most: a
channel that is zero wherever it is read is not there at all.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from canon.describe.signature import norm_affine, stage_params
from canon.describe.sketch import RowSketch
from canon.graph import ChannelGraph, Space, Stage

NAN = float("nan")

TINY = 1e-36
"""Where float32 runs out of digits: norms of units that died in training hold such numbers, and they cancel badly."""


def constant_values(
    space: Space,
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    sketches: Mapping[int, RowSketch],
    zero: float,
    smallest: float = 0.0,
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
    """
    width = space.width
    values: dict[int, Tensor] = {}
    masses: dict[int, Tensor] = {}
    for producer in space.producers:
        sketch = sketches.get(producer.map)
        if sketch is None:
            values[producer.point] = torch.zeros(width, dtype=torch.float64)
            masses[producer.point] = torch.zeros(width, dtype=torch.float64)
            continue
        rows = slice(producer.offset, producer.offset + width * producer.repeat)
        vectors = sketch.vectors[rows].view(width, -1)
        mass = sketch.mass[rows].view(width, -1).norm(dim=1)
        silent = vectors.norm(dim=1) <= zero * mass
        offset = sketch.offset[rows].view(width, -1)
        if producer.repeat > 1:
            silent &= (offset == 0).all(dim=1)
        values[producer.point] = torch.where(silent, offset[:, 0], NAN)
        masses[producer.point] = sketch.offset_mass[rows].view(width, -1)[:, 0]
    for stage in space.stages:
        params = stage_params(stage, width, tensors)
        value, mass = _through(stage, params, values, masses, graph)
        gain = norm_affine(stage, params)[0].abs().amax(dim=1) if stage.kind == "norm" else torch.ones_like(value)
        cancelled = value.abs() <= zero * mass + max(smallest, TINY) * (1 + gain)
        values[stage.output] = torch.where(cancelled, torch.zeros_like(value), value)
        masses[stage.output] = mass
    return values


def _through(
    stage: Stage,
    params: Mapping[str, Tensor],
    values: Mapping[int, Tensor],
    masses: Mapping[int, Tensor],
    graph: ChannelGraph,
) -> tuple[Tensor, Tensor]:
    given = [values[p] for p in stage.inputs]
    x, mass = given[0], masses[stage.inputs[0]]
    still = torch.zeros_like(x)
    if stage.kind == "add":
        return given[0] + given[1], mass + masses[stage.inputs[1]]
    if stage.kind == "mul":
        product = given[0] * given[1]
        return torch.where((given[0] == 0) | (given[1] == 0), still, product), still
    if stage.kind == "norm":
        factor, shift, shift_mass = norm_affine(stage, params)
        if stage.repeat > 1:
            return torch.full_like(x, NAN), still
        # A factor of zero hides even what is not constant.
        passed = torch.where(factor[:, 0] == 0, still, factor[:, 0] * x)
        return passed + shift[:, 0], factor[:, 0].abs() * mass + shift_mass[:, 0]
    if stage.kind == "activation":
        return _activated(stage, x, graph), still
    if stage.kind == "slope":
        return torch.where(x >= 0, x, x * params["weight"].mean(1)), still
    return _weighted(stage, params, x, mass)


def _activated(stage: Stage, x: Tensor, graph: ChannelGraph) -> Tensor:
    if stage.keeps_constants and stage.function is not None:
        known = torch.where(x.isnan(), torch.zeros_like(x), x)
        with torch.no_grad():
            return torch.where(x.isnan(), NAN, stage.function(known).double())
    # What moves with the position keeps zero where it is known to: as a function, or because it lets scale pass.
    tap = graph.taps[stage.output]
    homogeneous = graph.taps[stage.inputs[0]] == tap and tap not in graph.fixed_taps and not stage.keeps_constants
    keeps_zero = homogeneous or (stage.function is not None and bool((stage.function(torch.zeros_like(x)) == 0).all()))
    return torch.where(x == 0, x, NAN) if keeps_zero else torch.full_like(x, NAN)


def _weighted(stage: Stage, params: Mapping[str, Tensor], x: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Depthwise kernels, layer scales, shifts and instance norms."""
    if stage.kind == "instance_norm":
        x, mass = torch.where(x.isnan(), x, torch.zeros_like(x)), torch.zeros_like(mass)
    elif "weight" in params:
        total = params["weight"].sum(1)
        scaled = x * total if stage.keeps_constants and stage.repeat == 1 else torch.full_like(x, NAN)
        absent = (x == 0) | (params["weight"] == 0).all(dim=1)
        x = torch.where(absent, torch.zeros_like(x), scaled)
        mass = mass * total.abs()
    if "bias" in params:
        bias = params["bias"]
        if bias.shape[1] == 1:
            x, mass = x + bias[:, 0], mass + bias[:, 0].abs()
        else:
            x = torch.where((bias == 0).all(dim=1), x, NAN)
    return x, mass
