"""How loud channels are: a rough size of every channel at every point, in units of the model's inputs.

Sizes follow weights and norms, so they are free of scales that the network does not see: what a channel contributes
to a reader is its size times the column that reads it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.describe import Array
from canon.describe.arrays import quiet
from canon.describe.curves import Function
from canon.graph import LinearMap, Space, Stage
from canon.recovery.facts.following import Following
from canon.rewrite.axes import columns_of

Size = tuple[Array, Array]
"""How far a channel moves, and the value that it moves around."""


SMALL: Final = 1e-30
"""Squares that float32 holds with fewer digits, or not at all, are smaller."""

REACH: Final = (-16.0, -4.0, -1.0, 1.0, 4.0, 16.0)
"""How far values go from where they mostly are."""


class Sizes(Following[Size]):
    """Sizes of a subject's values."""

    @quiet
    def rows(self, index: int, linear: LinearMap) -> list[Size]:
        """Inputs that move apart from each other: squares add up."""
        weight = self.subject.tensors[linear.weight]
        length = weight.shape[linear.column_axis] * linear.groups
        size = np.ones(length)
        if linear.columns is not None:
            size = np.concatenate([loudness(self.read(s)).repeat(s.repeat) for s in linear.columns])
        source = columns_of(weight, linear, 0, length)
        squared = _squares(source).cpu().numpy() * size**2
        move = np.sqrt(squared.reshape(len(squared), linear.groups, -1).sum(axis=2)).T.ravel()
        level = np.zeros(move.size) if linear.bias is None else self.subject.array(linear.bias)
        found = []
        for segment in linear.rows:
            part, shape = slice(segment.offset, segment.offset + segment.length), (-1, segment.repeat)
            found.append((move[part].reshape(shape).max(axis=1), _largest(level[part].reshape(shape))))
        return found

    def unknown(self, space: Space) -> Size:
        """Of ordinary size."""
        return np.ones(space.width), np.zeros(space.width)

    @quiet
    def through(self, stage: Stage, space: Space, given: list[Size]) -> Size:
        """Sizes behind a stage."""
        move, level = given[0]
        if stage.kind == "add":
            return np.sum([g[0] for g in given], axis=0), np.sum([g[1] for g in given], axis=0)
        if stage.kind == "mul":
            both = loudness(given[0]) * loudness(given[1])
            return both, np.zeros_like(both)
        if stage.kind == "activation":
            if stage.reach != "pointwise" or stage.function is None:
                return given[0]
            return _bent(stage.function, move, level)
        if stage.kind == "norm":
            norm = self.parameters.affine(stage, space)
            return move * np.abs(norm.factor).max(axis=1), _largest(level[:, None] * norm.factor + norm.shift)
        if stage.kind == "instance_norm":
            move, level = np.where(move > 0, 1.0, 0.0), np.zeros_like(level)
        params = self.parameters.of(stage, space)
        if "weight" in params:
            weight = params["weight"]
            move, level = move * np.sqrt((weight**2).sum(axis=1)), level * weight.sum(axis=1)
        if "bias" in params:
            level = level + _largest(params["bias"])
        return move, level

    def loudness(self, space: Space, point: int) -> Array:
        """By channel: one figure for how loud it is at a point."""
        return loudness(self.at(space, point))


def _squares(weight: Tensor) -> Tensor:
    """Sums of squares over kernels, float64; those that are no numbers in float32 are taken anew."""
    entries = weight.to(torch.promote_types(weight.dtype, torch.float32)).square()
    squares = (entries @ entries.new_ones(entries.shape[2])).double()
    small = squares < SMALL
    squares[small] = weight[small].double().square().sum(dim=1)
    return squares


def _bent(function: Function, move: Array, level: Array) -> Size:
    """What a function makes of values around a level: some of them go far."""
    with torch.no_grad():
        ends = [function(torch.from_numpy(level + far * move)).double().numpy() for far in (0, *REACH)]
    here, *others = (np.nan_to_num(end) for end in ends)
    steps = [np.abs(end - here) / abs(far) for far, end in zip(REACH, others, strict=True)]
    return np.maximum.reduce(steps), here


def loudness(size: Size) -> Array:
    """One figure of both."""
    return np.hypot(*size)


def _largest(values: Array) -> Array:
    """The entry of the largest magnitude in each row."""
    return np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)[:, 0]
