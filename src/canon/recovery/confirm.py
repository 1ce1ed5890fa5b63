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

    def mass(self, channels: Array) -> Array:
        """Norms of what was added up in them."""
        mass = self.sketch.mass[self._numbers(channels)]
        return np.asarray(np.linalg.norm(mass.reshape(channels.size, self.producer.repeat), axis=1))

    def pieces(self, channels: Array) -> list[Array]:
        """Channels to work on at a time."""
        numbers = self.tensors[self.linear.weight][0].numel() * self.producer.repeat
        return np.array_split(channels, max(1, -(-channels.size * numbers // PIECE)))

    def _numbers(self, channels: Array) -> Array:
        repeat = self.producer.repeat
        return np.asarray((channels[:, None] * repeat + np.arange(repeat)).ravel() + self.producer.offset)


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
    heads, place = np.unique(leader, return_inverse=True)
    lead = torch.cat([rows.of(part) for part in rows.pieces(heads)])
    length, found, start = lead.norm(dim=1), [], 0
    mass = rows.mass(heads)[place], rows.mass(following)
    for part in rows.pieces(following):
        own, number = rows.of(part), torch.from_numpy(place[start : start + part.size]).to(lead.device)
        size = own.norm(dim=1)
        cosine = (own * lead[number]).sum(dim=1).abs() / (size * length[number]).clamp(min=1e-300)
        found.append(torch.stack([cosine, size, length[number]]).cpu().numpy())
        start += part.size
    cosine, size, length_there = np.concatenate(found, axis=1)
    gap = np.sqrt(np.maximum(2 * (1 - cosine), 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        slack = np.clip(np.fmax(mass[0] / length_there, mass[1] / size), 1.0, 20.0)
    slack = np.maximum(1.0, slack * min(1.0, tolerance.noise / tolerance.equal))
    absent = (size <= ROOM * tolerance.zero * mass[1]) & (length_there <= ROOM * tolerance.zero * mass[0])
    return np.asarray((gap > ROOM * max(tolerance.equal, FINEST) * slack) & ~absent)
