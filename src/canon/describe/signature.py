"""Signatures: everything that a channel of a space computes, free of the scales that the network does not see.

Walk the space in execution order. What enters a tap (a layer's row, a norm's factor, a depthwise kernel) is written as
a direction and a magnitude; the first thing to enter a tap sets the channel's scale there, and later magnitudes count
relative to it. Where a tap lets no scale pass, magnitudes count as they are. Offsets are carried through affine stages
and become part of the signature where something reads them: a consumer, or a nonlinearity.

Two channels are proportional at every tap exactly if their signatures agree, and then the ratio of their scales at a
tap is the factor between them there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from canon.describe.sketch import RowSketch
from canon.graph import ChannelGraph, Space, Stage

AFFINE = ("norm", "scale", "shift", "add")
"""Stages that pass an offset on exactly."""


@dataclass(eq=False)
class Signature:
    """The signatures of all channels of a space."""

    width: int
    blocks: list[Tensor] = field(default_factory=list)
    """Each `width x d`: directions, log-ratios, offsets. Channels agree if every block does."""

    slack: list[Tensor] = field(default_factory=list)
    """Per block and channel: how much more than the tolerance rounding may have moved it."""

    hashed: list[int] = field(default_factory=list)
    """Blocks that are never ill-conditioned, fit to hash on."""

    scales: dict[int, Tensor] = field(default_factory=dict)
    """By tap: the scale of each channel, signed where a negative scale passes; 0 where nothing entered."""

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """Largest disagreement over all blocks of channels `a[i]` and `b[i]`, slack taken off."""
        worst = torch.zeros(a.numel(), dtype=torch.float64)
        for block, slack in zip(self.blocks, self.slack, strict=True):
            gap = (block[a] - block[b]).norm(dim=1)
            worst = torch.maximum(worst, gap / torch.maximum(slack[a], slack[b]))
        return worst


class _Walk:
    """One pass over a space's program."""

    def __init__(self, space: Space, graph: ChannelGraph, zero: float) -> None:
        self.space, self.graph, self.zero = space, graph, zero
        self.signature = Signature(space.width)
        self.magnitude: dict[int, Tensor] = {}
        self.offset: dict[int, Tensor] = {}
        self.mass: dict[int, Tensor] = {}
        self.seen: set[int] = set()
        self.signs: dict[int, Tensor] = {}

    def choose_signs(self, params: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Where a negative scale passes, take the sign that makes the factor of the norm behind positive.

        A sign read off the row itself would flip with the last bit of a small number.
        """
        graph = self.graph
        for index, stage in enumerate(self.space.stages):
            tap = graph.taps[stage.inputs[0]]
            free = tap in graph.signed_taps and tap not in graph.fixed_taps
            if stage.kind == "norm" and stage.repeat == 1 and free and tap not in self.signs:
                factor = norm_affine(stage, params[index])[0][:, 0]
                self.signs[tap] = torch.where(factor < 0, -1.0, 1.0).double()

    def known(self, point: int) -> bool:
        return point in self.offset

    def enter(self, tap: int, vector: Tensor, source: Tensor, mass: Tensor | None = None) -> None:
        """`vector · source` enters a tap: a direction per channel times the scale of where it comes from."""
        norm = vector.norm(dim=1)
        if mass is not None:
            norm = torch.where(norm <= self.zero * mass, torch.zeros_like(norm), norm)
        live = (norm > 0) & (source != 0)
        safe = torch.where(live, norm, torch.ones_like(norm))
        direction = torch.where(live[:, None], vector / safe[:, None], torch.zeros_like(vector))
        direction = direction * torch.sign(source)[:, None]
        size = torch.where(live, norm * source.abs(), torch.zeros_like(norm))
        first = self.magnitude.get(tap)
        fixed = tap in self.graph.fixed_taps
        if first is None:
            first = torch.zeros_like(size)
        sign = self.signs.get(tap, torch.ones_like(size))
        direction = direction * sign[:, None]
        magnitude = torch.where(first > 0, first, size)
        self.magnitude[tap] = magnitude
        self.signature.scales[tap] = torch.ones_like(size) if fixed else sign * magnitude
        reference = torch.ones_like(size) if fixed else magnitude
        usable = live & (reference > 0)
        ratio = torch.where(usable, size / torch.where(usable, reference, 1.0), 1.0).log()
        slack = torch.ones_like(size)
        if mass is not None:
            slack = torch.where(live, (mass / safe).clamp(1, 20), slack)
        self.block(direction, slack, hashed=True)
        self.block(ratio[:, None], slack, hashed=True)

    def block(self, data: Tensor, slack: Tensor, hashed: bool) -> None:
        if hashed:
            self.signature.hashed.append(len(self.signature.blocks))
        self.signature.blocks.append(data)
        self.signature.slack.append(slack)

    def observe(self, point: int) -> None:
        """Something reads this point: its offset matters from here on."""
        if point in self.seen or not self.known(point):
            return
        self.seen.add(point)
        offset, mass = self.offset[point], self.mass[point]
        tap = self.graph.taps[point]
        scale = self.magnitude.get(tap)
        if scale is None:
            return
        sign = torch.sign(self.signature.scales[tap])
        usable = scale > 0
        safe = torch.where(usable, scale, torch.ones_like(scale))
        # Where nothing entered, the channel is this offset alone and its factor is 1.
        ratio = torch.where(usable, sign * offset / safe, offset)
        slack = 1 + torch.where(usable, mass / safe, torch.zeros_like(mass)).clamp(max=20)
        self.block(torch.asinh(ratio)[:, None], slack, hashed=False)

    def set_offset(self, point: int, offset: Tensor, mass: Tensor) -> None:
        small = offset.abs() <= self.zero * mass
        self.offset[point] = torch.where(small, torch.zeros_like(offset), offset)
        self.mass[point] = mass

    def stage(self, stage: Stage, params: Mapping[str, Tensor]) -> None:
        if stage.kind in ("add", "mul"):
            self.join(stage)
            return
        given = stage.inputs[0]
        if not self.known(given):
            return
        zero = torch.zeros(self.space.width, dtype=torch.float64)
        offset, mass = self.offset[given], self.mass[given]
        tap, out = self.graph.taps[given], self.graph.taps[stage.output]
        # A tap that lets no scale pass has scale 1, though nothing but an activation entered it.
        scale = self.signature.scales.get(tap, zero + 1 if tap in self.graph.fixed_taps else zero)
        affine = stage.kind in ("norm", "scale") or (stage.kind == "shift" and stage.keeps_constants)
        if not affine or stage.repeat > 1:
            self.observe(given)
            offset, mass = zero, zero
        if stage.kind == "norm":
            factor, shift, shift_mass = norm_affine(stage, params)
            self.enter(out, factor, scale)
            factor, shift = factor[:, 0], shift[:, 0]
            if stage.repeat > 1:
                self.block(torch.asinh(shift)[:, None], 1 + shift_mass[:, 0], hashed=False)
                shift, shift_mass = zero, zero[:, None]
            self.set_offset(stage.output, factor * offset + shift, factor.abs() * mass + shift_mass[:, 0])
            return
        if stage.kind in ("depthwise", "scale", "instance_norm") and "weight" in params:
            self.enter(out, params["weight"], scale)
            if stage.kind == "scale" and stage.keeps_constants and stage.repeat == 1:
                factor = params["weight"].sum(1)
                offset, mass = factor * offset, factor.abs() * mass
        if stage.kind == "slope":
            self.block(params["weight"], torch.ones_like(zero), hashed=True)
        if "bias" in params:
            bias = params["bias"]
            if bias.shape[1] == 1:
                offset, mass = offset + bias[:, 0], mass + bias[:, 0].abs()
            else:
                self.enter(out, bias, torch.ones_like(zero))
        self.set_offset(stage.output, offset, mass)

    def join(self, stage: Stage) -> None:
        known = [p for p in stage.inputs if self.known(p)]
        if not known:
            return
        zero = torch.zeros(self.space.width, dtype=torch.float64)
        if stage.kind == "mul":
            for point in known:
                self.observe(point)
            self.set_offset(stage.output, zero, zero)
            return
        offset = sum((self.offset[p] for p in known), zero)
        mass = sum((self.mass[p] for p in known), zero)
        self.set_offset(stage.output, offset, mass)


def norm_affine(stage: Stage, params: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """A norm as `a·x + b`: `a`, `b`, and the sum of magnitudes in `b`, each `width x repeat`."""
    mean, var = params["mean"], params["var"]
    factor = torch.rsqrt(var + stage.eps)
    if "weight" in params:
        factor = factor * params["weight"]
    shift, mass = -factor * mean, (factor * mean).abs()
    if "bias" in params:
        shift, mass = shift + params["bias"], mass + params["bias"].abs()
    return factor, shift, mass


def stage_params(stage: Stage, width: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A stage's parameters for one space, each as `width x entries` in float64 on the CPU."""
    found = {}
    for role, name in stage.params.items():
        tensor = tensors[name].detach()
        axis = 0 if stage.kind != "shift" and role == "bias" else stage.axis
        part = tensor.narrow(axis, stage.offset, width * stage.repeat).movedim(axis, 0)
        found[role] = part.reshape(width, -1).double().cpu()
    return found


def describe(
    space: Space,
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    sketches: Mapping[int, RowSketch],
    zero: float,
) -> Signature:
    """The signatures of a space's channels.

    Args:
        space: The space.
        graph: The graph it belongs to.
        tensors: The model's tensors by name.
        sketches: By map index. A producer without a sketch is left out, with all that comes of it alone.
        zero: What counts as cancelled, relative to what was added up.
    """
    walk = _Walk(space, graph, zero)
    params = {i: stage_params(s, space.width, tensors) for i, s in enumerate(space.stages)}
    walk.choose_signs(params)
    one = torch.ones(space.width, dtype=torch.float64)
    for producer in space.producers:
        sketch = sketches.get(producer.map)
        if sketch is None:
            continue
        rows = slice(producer.offset, producer.offset + space.width * producer.repeat)
        vectors = sketch.vectors[rows].view(space.width, -1)
        mass = sketch.mass[rows].view(space.width, -1).norm(dim=1)
        walk.enter(graph.taps[producer.point], vectors, one, mass)
        offset = sketch.offset[rows].view(space.width, -1)
        if producer.repeat > 1:
            walk.block(torch.asinh(offset), one, hashed=False)
            offset = torch.zeros_like(offset)
        walk.set_offset(producer.point, offset[:, 0], sketch.offset_mass[rows].view(space.width, -1)[:, 0])
    for index, stage in enumerate(space.stages):
        walk.stage(stage, params[index])
    for consumer in space.consumers:
        walk.observe(consumer.point)
    return walk.signature
