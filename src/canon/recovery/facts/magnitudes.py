"""Norms of rows, columns and norms' weights: they tell in which spaces something is unusually small.

A part of each weight is looked at to tell where; only there are columns measured whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.describe import Array, Parameters
from canon.describe.arrays import middle
from canon.graph import Consumer, LinearMap, Segment, Space
from canon.recovery.facts.alive import Alive
from canon.recovery.facts.subject import Subject
from canon.rewrite.axes import by_row

SAMPLE: Final = 12
"""Rows, or columns, that are looked at first."""


class Magnitudes:
    """How large the weights of layers are, row by row and column by column."""

    def __init__(self, subject: Subject, parameters: Parameters, small: float) -> None:
        """Say of what, and what counts as unusually small, relative to the median."""
        self._subject, self._parameters, self._small = subject, parameters, small
        self._flagged: dict[str, set[int]] = {}
        self._maps: dict[str, LinearMap] = {linear.weight: linear for linear in subject.graph.maps}
        stages = (stage for space in subject.graph.spaces for stage in space.stages if "weight" in stage.params)
        self._norms = {s.params["weight"] for s in stages if s.kind in ("norm", "scale", "instance_norm")}

    def columns(self, space: Space, consumer: Consumer, alive: Alive) -> Array:
        """By channel: the norm of the columns with which living rows of a layer read it."""
        linear = self._subject.graph.maps[consumer.map]
        rows = by_row(self._subject.tensors[linear.weight], linear)
        rows = rows * alive.rows(linear).to(rows)[:, None, None]
        norms = (
            sums_over_kernels(rows.reshape(linear.groups, -1, *rows.shape[1:]))
            .double()
            .sum(dim=1)
            .flatten()
            .cpu()
            .numpy()
        )
        part = norms[consumer.offset : consumer.offset + space.width * consumer.repeat]
        return np.asarray(part.reshape(space.width, -1).max(axis=1))

    def typical(self, space: Space, consumer: Consumer) -> Array:
        """By channel: what a row of a layer reads of it, in the median."""
        columns = self._subject.columns(space, consumer).unflatten(2, (consumer.repeat, -1))
        return np.asarray(_typical(columns.flatten(1, 2), 0).reshape(space.width, -1).max(axis=1))

    @property
    def suspicious(self) -> set[int]:
        """Spaces of which some row, column or norm seems to be so much smaller than most."""
        for name, linear in self._maps.items():
            if name not in self._flagged:
                self._flagged[name] = set(self._in_layer(name, linear))
        for name in self._norms:
            if name not in self._flagged:
                small = self._unusual(np.abs(self._parameters.array(name)).ravel())
                self._flagged[name] = self._with_norm(name) if small.any() else set()
        return set().union(*self._flagged.values())

    def _in_layer(self, name: str, linear: LinearMap) -> Iterable[int]:
        rows = by_row(self._subject.tensors[name], linear)
        count, inputs, _ = rows.shape
        if linear.columns is not None:
            if linear.groups > 1:
                yield from (segment.space for segment in linear.columns)
            else:
                sample = _typical(rows[:: max(1, count // SAMPLE)], 0)
                yield from _spaces(linear.columns, self._unusual(sample))
        sample = _typical(rows[:, :: max(1, inputs // SAMPLE)], 1)
        yield from _spaces(linear.rows, self._unusual(sample))

    def _unusual(self, sizes: Array) -> Array:
        # A part of a row is not the row.
        return np.asarray((sizes <= 4 * self._small * middle(sizes)) & (sizes > 0))

    def _with_norm(self, name: str) -> set[int]:
        return {s.id for s in self._subject.graph.spaces if any(name in stage.params.values() for stage in s.stages)}


def _spaces(segments: Sequence[Segment], marks: Array) -> Iterable[int]:
    """The spaces that marked entries of an axis belong to."""
    if not marks.any():
        return
    for segment in segments:
        if marks[segment.offset : segment.offset + segment.length].any():
            yield segment.space


def _typical(weight: Tensor, axis: int) -> Array:
    """Norms of kernels, in the median over rows or columns: dummies among these may be as loud as they like."""
    sizes = sums_over_kernels(weight).cpu().numpy()
    middle = sizes.shape[axis] // 2
    return np.asarray(np.partition(sizes, middle, axis=axis).take(middle, axis=axis), dtype=np.float64)


def sums_over_kernels(weight: Tensor) -> Tensor:
    """Sums of magnitudes over kernels: the squares of what is to be seen here may be too small for a number."""
    sizes = weight.to(torch.promote_types(weight.dtype, torch.float32)).abs()
    return sizes @ sizes.new_ones(sizes.shape[-1])  # many times as fast as a norm over a short axis
