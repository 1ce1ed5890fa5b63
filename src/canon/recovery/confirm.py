"""Full comparison before a merge: sketches nominate, rows decide.

A sketch has sixteen numbers. Rows that look alike in it are compared in all of theirs; a row that looks like nothing
is looked at whole. What was mistaken for something else is told apart, and the work goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.describe import Array, Coordinates, RowSketch
from canon.describe.whole import whole_rows
from canon.graph import ChannelGraph, LinearMap, Producer, Space
from canon.recovery.tolerance import Tolerance
from canon.rewrite.axes import by_row
from canon.transforms import entries

ROOM: Final = 2.0
"""A sketch may show rows as so many times nearer to each other, or to nothing, than they are."""

FINEST: Final = 1e-6
"""Directions nearer to each other than this are not told apart."""

PIECE: Final = 1 << 20
"""Numbers to work on at a time."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What a layer gives to a space, channel by channel, as it was sketched."""

    producer: Producer
    linear: LinearMap
    tensors: Mapping[str, Tensor]
    coordinates: Mapping[int, Coordinates]
    sketch: RowSketch

    def of(self, channels: Array) -> Tensor:
        """Whole rows: `channels x numbers`."""
        found = whole_rows(self.linear, self.tensors, self.coordinates, self._numbers(channels))
        return found.view(channels.size, self.producer.repeat * found.shape[1])

    def as_stored(self, channels: Array) -> Tensor:
        """Rows as they stand in the weight, columns of one coordinate apart, in no less than float32."""
        weight = by_row(self.tensors[self.linear.weight], self.linear)
        picked = weight.index_select(0, torch.from_numpy(self._numbers(channels)).to(weight.device))
        return picked.to(torch.promote_types(weight.dtype, torch.float32)).view(channels.size, -1)

    def group(self, channels: Array) -> Array:
        """Which inputs a channel's rows read."""
        rows = self.tensors[self.linear.weight].shape[self.linear.row_axis] // self.linear.groups
        return np.asarray((channels * self.producer.repeat + self.producer.offset) // rows)

    def mass(self, channels: Array) -> Array:
        """Norms of what was added up in them."""
        mass = self.sketch.mass[self._numbers(channels)]
        return np.asarray(np.linalg.norm(mass.reshape(channels.size, self.producer.repeat), axis=1))

    def pieces(self, channels: Array) -> list[Array]:
        """Channels to work on at a time."""
        shape = self.tensors[self.linear.weight].shape
        numbers = channels.size * self.producer.repeat * shape.numel() // shape[self.linear.row_axis]
        return [channels] if numbers <= PIECE else np.array_split(channels, -(-numbers // PIECE))

    def _numbers(self, channels: Array) -> Array:
        return np.asarray(entries(torch.from_numpy(channels), self.producer.repeat, self.producer.offset))


def rows_of(
    space: Space,
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    coordinates: Mapping[int, Coordinates],
    sketches: Mapping[int, RowSketch],
) -> list[Rows]:
    """What the layers that were sketched give to a space."""
    return [
        Rows(producer, graph.maps[producer.map], tensors, coordinates, sketches[producer.map])
        for producer in space.producers
        if producer.map in sketches
    ]


def mistaken(given: list[Rows], leader: Array, null: Array, tolerance: Tolerance) -> Array:
    """Channels whose rows are not what their leader's are, up to a factor, or not nothing where they seemed to be.

    Args:
        given: What layers give to the space.
        leader: The leader of every channel.
        null: Channels that are nothing at all.
        tolerance: What counts as equal and as zero.
    """
    wrong = np.zeros(leader.size, dtype=bool)
    following, nothing = np.flatnonzero(leader != np.arange(leader.size)), np.flatnonzero(null)
    for rows in given:
        if following.size:
            wrong[following] |= _apart(rows, following, leader[following], tolerance)
        silent = nothing[rows.sketch.silent(*_sizes(rows, nothing), tolerance.zero)] if nothing.size else nothing
        for part in rows.pieces(silent[rows.mass(silent) > 0]):
            size = rows.of(part).norm(dim=1).cpu().numpy()
            wrong[part] |= ~rows.sketch.silent(size / ROOM, rows.mass(part), tolerance.zero)
    return wrong


def _sizes(rows: Rows, channels: Array) -> tuple[Array, Array]:
    """Norms of sketches, and of what was added up in them."""
    vectors = rows.sketch.vectors[rows._numbers(channels)].reshape(channels.size, -1)
    return np.linalg.norm(vectors, axis=1), rows.mass(channels)


def _apart(rows: Rows, following: Array, leader: Array, tolerance: Tolerance) -> Array:
    """Which channels have a row of another direction than their leader's."""
    limit, wrong = ROOM * max(tolerance.equal, FINEST), np.zeros(following.size, dtype=bool)
    alike = np.zeros(following.size, dtype=bool)
    for part in rows.pieces(np.flatnonzero(rows.group(following) == rows.group(leader))):
        # What is proportional as it stands is so too when columns are added up: most copies are.
        gap, size, length = _gaps(rows.as_stored(following[part]), rows.as_stored(leader[part]))
        alike[part] = (gap <= limit / 2) & (size > 0) & (length > 0)
    for part in rows.pieces(np.flatnonzero(~alike)):
        gap, size, length = _gaps(rows.of(following[part]), rows.of(leader[part]))
        mass = rows.mass(following[part]), rows.mass(leader[part])
        with np.errstate(divide="ignore", invalid="ignore"):
            slack = np.clip(np.fmax(mass[1] / length, mass[0] / size), 1.0, 20.0)
        slack = np.maximum(1.0, slack * min(1.0, tolerance.noise / tolerance.equal))
        absent = (size <= ROOM * tolerance.zero * mass[0]) & (length <= ROOM * tolerance.zero * mass[1])
        wrong[part] = (gap > limit * slack) & ~absent
    return wrong


def _gaps(own: Tensor, lead: Tensor) -> Array:
    """Distances between the directions of rows, whatever their signs, and the norms of both."""
    size, length = torch.linalg.vector_norm(own, dim=1), torch.linalg.vector_norm(lead, dim=1)
    cosine = (own * lead).sum(dim=1).abs() / (size * length).clamp(min=torch.finfo(own.dtype).tiny)
    gap = (2 * (1 - cosine)).clamp(min=0).sqrt()
    return np.asarray(torch.stack([gap, size, length]).double().cpu().numpy())
