"""Between which numbers values lie, whatever the input is: a ReLU is never negative, ReLU6 never over 6.

An interval for every channel at every point, followed from layer to layer in the order of execution. Most rows read
unbounded inputs with weights of either sign, and then nothing is known of them; a few numbers of a row tell, and
only the other rows are read whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.describe import Array, Parameters
from canon.describe.arrays import middle, norm, quiet
from canon.describe.curves import Function
from canon.graph import LinearMap, Segment, Space, Stage
from canon.recovery.facts.following import Following
from canon.recovery.facts.sizes import Sizes
from canon.recovery.facts.subject import Subject
from canon.rewrite.axes import by_row

Interval = tuple[Array, Array, Array]
"""Lowest and highest value of each channel, and how many numbers had to have the right sign for that; or, as a negative
number, as many as its size is worth."""

Ends = tuple[Array, Array]
"""Lowest and highest value alone."""

GRID: Final = np.concatenate([-np.logspace(4, -6, 401), [0.0], np.logspace(-6, 4, 401)])
"""Where functions are asked: all that the graph calls pointwise is a function of torch, without surprises between."""

FLAT: Final = 1e-12
"""A function that moves no more than this is constant."""

CHANCE: Final = 1e-3
"""How many channels of a space of random ones may be expected to be bounded by chance."""


FAR: Final = 1e3
"""A shift so many times as large as all that channels do is never left."""


@dataclass(frozen=True, eq=False)
class Ball:
    """Channels are `gain · z + shift`, and `z` as a vector is no longer than `radius`."""

    radius: float
    gain: Array
    shift: Array


class Ranges(Following[Interval]):
    """Intervals of a subject's values."""

    def __init__(self, subject: Subject, parameters: Parameters, sizes: Callable[[], Sizes]) -> None:
        """Say of what, and how to find out how loud channels are, which is hardly ever asked."""
        self._shapes: dict[Function, Shape] = {}
        self._special: set[int] = set()
        self._sizes, self._outlying = sizes, dict[str, bool]()
        super().__init__(subject, parameters)

    def rows(self, index: int, linear: LinearMap) -> list[Interval]:
        """The lowest and highest of a channel's positions, where a layer makes several."""
        low, high, evidence = self._of_rows(linear)
        found = []
        for segment in linear.rows:
            part, shape = slice(segment.offset, segment.offset + segment.length), (-1, segment.repeat)
            parts = (low[part].reshape(shape), high[part].reshape(shape), evidence[part].reshape(shape))
            found.append((parts[0].min(axis=1), parts[1].max(axis=1), parts[2].min(axis=1)))
        return found

    def unknown(self, space: Space) -> Interval:
        """Anything."""
        return _unbounded(space.width)

    def shape(self, function: Function) -> Shape:
        """What a function does to intervals; each is asked once."""
        if function not in self._shapes:
            self._shapes[function] = Shape(function)
        return self._shapes[function]

    def constant(self, space: Space, point: int) -> Array:
        """By channel: the only value there is at a point, NaN where there may be several.

        Over few inputs, the signs of honest weights agree by chance: a channel counts where that is not to be expected.
        """
        low, high, evidence = self.at(space, point)
        return np.where((low == high) & (space.width * 0.5 ** np.abs(evidence) <= CHANCE), low, np.nan)

    def by_size(self, space: Space, point: int) -> Array:
        """By channel: whether its range is known because its row is small, whatever the signs in it."""
        return np.asarray(self.at(space, point)[2] < 0)

    def special(self, space: Space) -> bool:
        """Whether more may be known of some channels than that their activations have a range."""
        kernels = any(stage.kind in ("depthwise", "mul") for stage in space.stages)
        points = [self._known[producer.point] for producer in space.producers if producer.point in self._known]
        return (
            kernels
            or self._shifted(space)
            or any(np.isfinite(low).any() or np.isfinite(high).any() for low, high, _ in points)
        )

    def _of_rows(self, linear: LinearMap) -> Interval:
        low, high, evidence = self._of_weights(linear)
        if linear.bias is not None:
            bias = self.subject.array(linear.bias)
            endless = np.isinf(bias)
            if endless.any():
                low, high = np.where(endless, bias, low), np.where(endless, bias, high)
                evidence = np.where(endless, np.inf, evidence)
        return low, high, evidence

    @quiet
    def _of_weights(self, linear: LinearMap) -> Interval:
        weight = self.subject.tensors[linear.weight]
        count = weight.shape[linear.row_axis]
        low, high, evidence = np.full(count, -np.inf), np.full(count, np.inf), np.zeros(count)
        source = by_row(weight, linear)
        if linear.columns is None:
            return self._of_silent(linear, source)
        bias = np.zeros(count) if linear.bias is None else self.subject.array(linear.bias)
        bounds = [self._bounds(segment.point) for segment in linear.columns]
        if np.isfinite(bounds).all():
            low, high, evidence = _roughly(source, min(b[0] for b in bounds), max(b[1] for b in bounds), bias)
        ball = self._within(linear, source)
        if ball is not None:
            return ball[0] + bias, ball[1] + bias, np.full(count, -np.inf)  # no chance: every row is bounded
        rows = self._candidates(linear, source)
        if not rows.size:
            return low, high, evidence
        parts = [self._input(linear, segment) for segment in linear.columns]
        lower, upper = (np.concatenate(part) for part in zip(*parts, strict=True))
        blocks = rows // (count // linear.groups)
        for block in np.unique(blocks):
            those, part = rows[blocks == block], slice(block * source.shape[1], (block + 1) * source.shape[1])
            full = source[torch.from_numpy(those).to(source.device)].double().cpu().numpy()
            up, down = np.maximum(full, 0.0).sum(axis=2), np.minimum(full, 0.0).sum(axis=2)
            low[those] = _product(up, lower[part]) + _product(down, upper[part]) + bias[those]
            high[those] = _product(up, upper[part]) + _product(down, lower[part]) + bias[those]
            numbers = np.count_nonzero(full, axis=(1, 2))
            evidence[those] = np.where(numbers > 0, numbers, np.inf)
        return low, high, evidence

    def _within(self, linear: LinearMap, source: Tensor) -> Ends | None:
        """Intervals of rows over channels that lie in a ball: no more than a row's length allows. None: they do not."""
        level, reach = np.zeros(len(source)), np.zeros(len(source))
        for segment in linear.columns or ():
            ball = self.ball(segment)
            if ball is None or linear.zero_padding or linear.groups > 1:
                return None
            part = source[:, segment.offset : segment.offset + segment.length].double().cpu().numpy()
            level += part.sum(axis=2) @ ball.shift
            reach += ball.radius * norm((part * ball.gain[:, None]).transpose(0, 2, 1)).sum(axis=1)
        return level - reach, level + reach

    def ball(self, segment: Segment) -> Ball | None:
        """Where channels lie together because a norm over all of them came before; None: nothing is known."""
        space, stage = self.graph.spaces[segment.space], self._makers.get(segment.point)
        gain, shift = np.ones(space.width), np.zeros(space.width)
        while stage is not None and stage.kind in ("scale", "shift") and stage.repeat == 1:
            params = self.parameters.of(stage, space)
            shift = shift + gain * params["bias"][:, 0] if "bias" in params else shift
            gain = gain * params["weight"][:, 0] if "weight" in params else gain
            stage = self._makers.get(stage.inputs[0])
        if stage is None or np.isinf(stage.ball) or segment.repeat > 1:
            return None
        return Ball(stage.ball, gain, shift)

    def _of_silent(self, linear: LinearMap, source: Tensor) -> Interval:
        """Over the model's inputs, rows of zeros alone are bounded."""
        silent = (source.flatten(1)[:, :8] == 0).all(dim=1)
        if bool(silent.any()):
            silent[silent.clone()] = (source[silent] == 0).flatten(1).all(dim=1)
        bias = np.zeros(source.shape[0]) if linear.bias is None else self.subject.array(linear.bias)
        marks = silent.cpu().numpy()
        bounds = np.where(marks, bias, -np.inf), np.where(marks, bias, np.inf)
        return (*bounds, np.where(marks, np.inf, 0.0))

    def _input(self, linear: LinearMap, segment: Segment) -> tuple[Array, Array]:
        """Between which numbers a layer's inputs lie, with the zeros at the border."""
        lower, upper, _ = self.read(segment)
        if linear.zero_padding:
            lower, upper = np.minimum(lower, 0.0), np.maximum(upper, 0.0)
        return lower.repeat(segment.repeat), upper.repeat(segment.repeat)

    def _bounds(self, point: int) -> tuple[float, float]:
        """Between which numbers all channels at a point lie because of the function before it."""
        stage = self._makers.get(point)
        while stage is not None and stage.kind == "activation" and stage.reach in ("mean", "extreme"):
            if not stage.keeps_constants and stage.reach == "mean":
                return -np.inf, np.inf
            stage = self._makers.get(stage.inputs[0])
        if stage is None or stage.kind != "activation" or stage.reach != "pointwise" or stage.function is None:
            return -np.inf, np.inf
        low, high = self.shape(stage.function).bounds
        return min(low, 0.0), max(high, 0.0)

    def _candidates(self, linear: LinearMap, source: Tensor) -> Array:
        """Rows whose numbers seem to have one sign: of the others we know no more than of any row."""
        rows, gone = np.arange(source.shape[0]), self._gone(linear)
        size = source.shape[2]
        for count, kernel in ((8, 1), (32, 4), (source.shape[1], size)):  # from the middle: kernels may have grown
            first = (size - min(kernel, size)) // 2
            part = source[:, :count, first : first + kernel]
            if rows.size < source.shape[0]:
                part = part[torch.from_numpy(rows).to(source.device)]
            if gone is not None:
                part = part.masked_fill(gone[:count, None].to(part.device), 0)
            mixed = (part > 0).any(dim=2).any(dim=1) & (part < 0).any(dim=2).any(dim=1)
            rows = rows[~mixed.cpu().numpy()]
            if not rows.size:
                break
        for segment in linear.rows if rows.size else ():
            self._special.add(segment.space)
        return rows

    def _gone(self, linear: LinearMap) -> Tensor | None:
        """Inputs that are always zero, as far as they were found out already."""
        if linear.groups > 1 or not any(segment.space in self._special for segment in linear.columns or ()):
            return None
        parts = []
        for segment in linear.columns or ():
            zero = np.zeros(segment.length, dtype=bool)
            if segment.space in self._special:
                lower, upper, _ = self.read(segment)
                zero = ((lower == 0) & (upper == 0)).repeat(segment.repeat)
            parts.append(zero)
        return torch.from_numpy(np.concatenate(parts))

    @quiet
    def through(self, stage: Stage, space: Space, given: list[Interval]) -> Interval:
        """Intervals behind a stage."""
        low, high, evidence = given[0]
        if stage.kind == "add":
            low, high = (np.sum([g[end] for g in given], axis=0) for end in (0, 1))
            return low, high, np.minimum(evidence, given[-1][2])
        if stage.kind == "mul":
            return _multiplied(given[0], given[1])
        if stage.kind == "activation":
            return self._activated(stage, self._held(stage, space, given[0]) if self._shifted(space) else given[0])
        if stage.kind == "norm":
            line = self.parameters.affine(stage, space)
            ends = [line.factor * end[:, None] + line.shift for end in (low, high)]
            endless = np.isinf(line.shift)
            ends = [np.where((line.factor == 0) | endless, line.shift, end) for end in ends]
            evidence = np.where(endless.all(axis=1), np.inf, evidence)
            return np.minimum(*ends).min(axis=1), np.maximum(*ends).max(axis=1), evidence
        return self._weighted(stage, space, given[0])

    def _weighted(self, stage: Stage, space: Space, given: Interval) -> Interval:
        low, high, evidence = given
        params = self.parameters.of(stage, space)
        if stage.kind == "instance_norm":
            return _unbounded(space.width)
        if stage.kind == "slope":
            weight = params["weight"]
            ends = [np.where(end[:, None] >= 0, end[:, None], weight * end[:, None]) for end in (low, high)]
            crossing = (low <= 0) & (high >= 0)
            low, high = np.minimum(*ends).min(axis=1), np.maximum(*ends).max(axis=1)
            return np.where(crossing, np.minimum(low, 0), low), np.where(crossing, np.maximum(high, 0), high), evidence
        if "weight" in params:
            # Trained kernels often have one sign: what holds such a channel is as good as its size.
            evidence = np.where(low == high, evidence, -np.count_nonzero(params["weight"], axis=1))
            if not stage.keeps_constants:
                low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
            kernel = params["weight"].reshape(space.width, stage.repeat, -1)
            up, down = np.maximum(kernel, 0.0).sum(axis=2), np.minimum(kernel, 0.0).sum(axis=2)
            below = _times(up, low[:, None]) + _times(down, high[:, None])
            above = _times(up, high[:, None]) + _times(down, low[:, None])
            low, high = below.min(axis=1), above.max(axis=1)
        if "bias" in params:
            bias = params["bias"]
            endless = np.isinf(bias).all(axis=1)
            low = np.where(endless, bias.min(axis=1), low + bias.min(axis=1))
            high = np.where(endless, bias.max(axis=1), high + bias.max(axis=1))
            evidence = np.where(endless, np.inf, evidence)
        return low, high, evidence

    def _shifted(self, space: Space) -> bool:
        """Whether some shift stands out among those of its layer."""
        names = {self.graph.maps[producer.map].bias for producer in space.producers}
        names |= {stage.params.get(role) for stage in space.stages for role in ("bias", "mean")}
        return any(self._stands_out(name) for name in names if name is not None)

    def _stands_out(self, name: str) -> bool:
        if name not in self._outlying:
            sizes = np.abs(self.parameters.array(name)).ravel()
            self._outlying[name] = bool(sizes.max(initial=0.0) > FAR * middle(sizes))
        return self._outlying[name]

    def _held(self, stage: Stage, space: Space, given: Interval) -> Interval:
        """Channels whose shift is beyond all that any channel here does, its own filter too, stay near that shift."""
        move, level = self._sizes().at(space, stage.inputs[0])
        size = np.abs(level)
        held = np.isfinite(size) & (size >= FAR * np.maximum(move, np.median(np.hypot(move, level))))
        low, high = (np.where(held, level + part * size, end) for part, end in zip((-0.5, 0.5), given[:2], strict=True))
        return low, high, np.where(held, np.inf, given[2])

    def _activated(self, stage: Stage, given: Interval) -> Interval:
        low, high, evidence = given
        if np.isfinite(stage.ball):
            return np.full_like(low, -stage.ball), np.full_like(high, stage.ball), np.zeros_like(evidence)
        if stage.reach != "pointwise":
            if stage.reach == "other":
                return _unbounded(low.size)
            return given if stage.keeps_constants else (np.minimum(low, 0.0), np.maximum(high, 0.0), evidence)
        if stage.function is None or not stage.keeps_constants:
            return _unbounded(low.size)
        return (*self.shape(stage.function).image(low, high), evidence)


class Shape:
    """What a function makes of intervals."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.values = self._ask(GRID)

    def _ask(self, x: Array) -> Array:
        with torch.no_grad():
            return np.asarray(self.function(torch.from_numpy(np.ascontiguousarray(x))).double().numpy())

    @cached_property
    def rising(self) -> bool:
        """Whether it never falls."""
        return bool((np.diff(self.values) >= 0).all())

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Below and above everything that it gives, with a little room between the values that were asked."""
        values = self.values
        if not np.isfinite(values).all():
            return -np.inf, np.inf
        moves = [abs(values[a] - values[b]) > 1e-6 * abs(values[a]) for a, b in ((0, 40), (-1, -41))]
        ends = values[[0, -1]][moves]
        low, high = float(values.min()), float(values.max())
        below = -np.inf if (ends <= low).any() else low - 1e-3 * abs(low)
        return below, np.inf if (ends >= high).any() else high + 1e-3 * abs(high)

    def identical(self, low: Array, high: Array) -> Array:
        """By interval: whether the function gives back what it is given."""
        other = np.abs(self.values - GRID) > FLAT * np.maximum(1.0, np.abs(GRID))
        count = np.concatenate([[0], np.cumsum(other)])
        return np.asarray(count[np.searchsorted(GRID, high, side="right")] == count[np.searchsorted(GRID, low)])

    @cached_property
    def _variation(self) -> Array:
        """How far it has moved up to each value that was asked."""
        return np.concatenate([[0.0], np.cumsum(np.abs(np.diff(self.values)))])

    @quiet
    def image(self, low: Array, high: Array) -> Ends:
        """The interval that a function makes of each interval, or a wider one."""
        at_low, at_high = self._ask(low), self._ask(high)
        below, above = (np.full_like(low, bound) for bound in self.bounds)
        if self.rising:
            below = np.where(np.isnan(at_low), below, at_low)
            above = np.where(np.isnan(at_high), above, at_high)
        return self._flattened(low, high, at_low, at_high, (below, above))

    def _flattened(self, low: Array, high: Array, at_low: Array, at_high: Array, found: Ends) -> Ends:
        """Where a function hardly moves between the ends, it is constant."""
        first = np.minimum(np.searchsorted(GRID, low), GRID.size - 1)
        last = np.maximum(np.searchsorted(GRID, high, side="right") - 1, 0)
        inside = first <= last
        moved = np.where(inside, self._variation[last] - self._variation[first], np.abs(at_high - at_low))
        for bound, value, nearest in ((low, at_low, first), (high, at_high, last)):
            step = np.where(np.isfinite(bound) & inside, np.abs(value - self.values[nearest]), 0.0)
            moved = moved + np.where(np.isnan(step), np.inf, step)
        value = np.where(np.isnan(at_low), np.where(np.isnan(at_high), self.values[0], at_high), at_low)
        value = np.where(np.abs(value) <= FLAT, 0.0, value)
        flat = moved <= FLAT
        return np.where(flat, value, found[0]), np.where(flat, value, found[1])


def _unbounded(width: int) -> Interval:
    return np.full(width, -np.inf), np.full(width, np.inf), np.zeros(width)


def _roughly(source: Tensor, low: float, high: float, bias: Array) -> Interval:
    """Intervals of rows over inputs that all lie between two numbers.

    Had its numbers other signs, a row would reach further, `Σ|w|·(high − low)/2` in the mean. That honest signs, and a
    shift like the layer's, keep it from there by chance is as unlikely as its distance from zero in deviations says.
    """
    total = source.sum(dim=(1, 2), dtype=torch.float64).cpu().numpy()
    size = torch.linalg.vector_norm(source, ord=1, dim=(1, 2), dtype=torch.float64).cpu().numpy()
    square = torch.linalg.vector_norm(source, dim=(1, 2), dtype=torch.float64).square().cpu().numpy()
    up, down = (size + total) / 2, (total - size) / 2
    spread = square * ((high + low) / 2) ** 2 + np.median(np.abs(bias)) ** 2
    bits = (size * (high - low) / 2) ** 2 / np.where(spread > 0, 2 * np.log(2) * spread, 1e-300)
    numbers = float(source.shape[1:].numel())
    return up * low + down * high + bias, up * high + down * low + bias, -np.minimum(bits, numbers)


def _times(a: Array, b: Array) -> Array:
    """A product in which nothing times infinity is nothing."""
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def _product(weights: Array, inputs: Array) -> Array:
    finite = np.isfinite(inputs)
    total = weights[:, finite] @ inputs[finite]
    for sign in (1, -1):
        endless = weights[:, inputs == sign * np.inf]
        total = np.where((endless > 0).any(axis=1), total + sign * np.inf, total)
        total = np.where((endless < 0).any(axis=1), total - sign * np.inf, total)
    return np.asarray(total)


def _multiplied(a: Interval, b: Interval) -> Interval:
    ends = np.array([_times(x, y) for x in a[:2] for y in b[:2]])
    still = np.array([x[0] == x[1] for x in (a, b)])
    zero = np.array([x[0] == 0 for x in (a, b)]) & still
    # What zero gates is zero by that factor alone.
    evidence = np.where(zero[0], a[2], np.where(zero[1], b[2], np.minimum(a[2], b[2])))
    return ends.min(axis=0), ends.max(axis=0), evidence
