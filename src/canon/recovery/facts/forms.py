"""What a channel is as a function of its layer's inputs, where that is a line, or a line and one bent function of a
line.

At a point a channel is `Σ coefficient · row + offset`, over the layers that write to its space, plus at most one
term `factor · f(the same at another point)`, which a gate may multiply with a line. Sums of channels can then be seen
to be zero, or to be another channel, although no two of them are proportional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from canon.describe import Array, Parameters
from canon.graph import Space, Stage
from canon.recovery.facts.ranges import Ranges
from canon.recovery.facts.subject import Subject


@dataclass(frozen=True, eq=False)
class Bend:
    """A term `factor · f(u)`, or `factor · f(u) · v`."""

    stage: Stage
    """The activation; `u` is the form at its input."""

    factor: Array
    gate: Form | None = None
    """The line `v`."""


@dataclass(frozen=True, eq=False)
class Form:
    """Channels at a point."""

    lines: Mapping[int, Array]
    """By place among the space's producers: the coefficient of each channel."""

    offset: Array
    bend: Bend | None
    valid: Array
    """For which channels this holds."""

    def scaled(self, factor: Array, shift: Array | float = 0.0) -> Form:
        """`factor · form + shift`."""
        bend = None if self.bend is None else replace(self.bend, factor=self.bend.factor * factor)
        lines = {place: coefficient * factor for place, coefficient in self.lines.items()}
        return Form(lines, self.offset * factor + shift, bend, self.valid)


class Forms:
    """The forms of one space."""

    def __init__(self, subject: Subject, space: Space, parameters: Parameters, ranges: Ranges | None) -> None:
        self.subject, self.space, self.parameters, self.ranges = subject, space, parameters, ranges
        self.at: dict[int, Form] = {}
        """By point; a point that is not listed has none."""

        self._rows: dict[int, Array] = {}
        everyone = np.ones(space.width, dtype=bool)
        for place, producer in enumerate(space.producers):
            linear = subject.graph.maps[producer.map]
            if producer.repeat > 1:
                continue
            offset = np.zeros(space.width)
            if linear.bias is not None:
                offset = subject.array(linear.bias)[producer.offset : producer.offset + space.width]
            self.at[producer.point] = Form({place: np.ones(space.width)}, offset, None, everyone)
        for stage in space.stages:
            given = [self.at[point] for point in stage.inputs if point in self.at]
            made = self._through(stage, given) if len(given) == len(stage.inputs) else None
            if made is not None:
                self.at[stage.output] = made

    def _through(self, stage: Stage, given: list[Form]) -> Form | None:
        form = given[0]
        if stage.kind == "add":
            return _added(given)
        if stage.kind == "mul":
            return _gated(given)
        if stage.kind == "activation":
            return self._activated(stage, form)
        if stage.repeat > 1:
            return None
        if stage.kind == "norm":
            norm = self.parameters.affine(stage, self.space)
            return form.scaled(norm.factor[:, 0], norm.shift[:, 0])
        params = self.parameters.of(stage, self.space)
        if stage.kind not in ("scale", "shift", "slope") or any(p.shape[1] > 1 for p in params.values()):
            return None
        if stage.kind == "slope":  # a line and a magnitude
            slope, size = params["weight"][:, 0], replace(stage, kind="activation", function=torch.abs)
            return None if form.bend else replace(form.scaled((1 + slope) / 2), bend=Bend(size, (1 - slope) / 2))
        ones = np.ones(self.space.width)
        shift = params["bias"][:, 0] if "bias" in params else 0.0
        return form.scaled(params["weight"][:, 0] if "weight" in params else ones, shift)

    def _activated(self, stage: Stage, form: Form) -> Form | None:
        if stage.reach == "mean":
            return form  # the same sum of positions for every channel
        if stage.reach != "pointwise" or stage.function is None or not stage.keeps_constants:
            return None
        if self.ranges is not None:
            same = self.ranges.shape(stage.function).identical(*self.ranges.at(self.space, stage.inputs[0])[:2])
            if same.any():
                return replace(form, valid=form.valid & same)
        if form.bend is not None:
            return None
        width = self.space.width
        return Form({}, np.zeros(width), Bend(stage, np.ones(width)), form.valid)

    def rows(self, place: int) -> Array:
        """What a producer gives: `width x numbers`."""
        if place not in self._rows:
            self._rows[place] = self.subject.rows(self.space, self.space.producers[place])
        return self._rows[place]

    def gram(self, form: Form, members: Array) -> Tensor:
        """Products of the lines of some channels with each other, of rows as they are stored."""
        chosen = torch.from_numpy(members)
        total = torch.zeros(members.size, members.size, dtype=torch.float64)
        for place, coefficient in form.lines.items():
            rows = self.subject.stored_rows(self.space, self.space.producers[place])
            rows = rows.to(torch.promote_types(rows.dtype, torch.float32)).index_select(0, chosen.to(rows.device))
            factor = torch.from_numpy(coefficient).index_select(0, chosen)
            total += (rows @ rows.T).cpu() * factor * factor[:, None]
        return total

    def vectors(self, form: Form) -> Array:
        """The lines of a form as `width x numbers`, every producer side by side, and the offset last."""
        parts = []
        for place in range(len(self.space.producers)):
            rows = self.rows(place)
            parts.append(rows * form.lines[place][:, None] if place in form.lines else np.zeros_like(rows))
        return np.concatenate([*parts, form.offset[:, None]], axis=1)


def _gated(given: list[Form]) -> Form | None:
    bent, line = sorted(given, key=lambda form: form.bend is None)
    if bent.bend is None or bent.bend.gate or line.bend or bent.lines or bent.offset.any():
        return None
    return replace(bent, bend=replace(bent.bend, gate=line), valid=bent.valid & line.valid)


def _added(given: list[Form]) -> Form | None:
    bends = [form.bend for form in given if form.bend is not None]
    if len(bends) > 1:
        return None
    lines: dict[int, Array] = {}
    for form in given:
        for place, coefficient in form.lines.items():
            lines[place] = lines.get(place, 0.0) + coefficient
    valid = np.logical_and.reduce([form.valid for form in given])
    return Form(lines, np.sum([form.offset for form in given], axis=0), bends[0] if bends else None, valid)
