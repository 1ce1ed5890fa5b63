"""Coordinates: how a space's channels are named when the layers that read it are described.

Two channels with the same coordinate are the same signal up to a factor, so a layer's columns on them add up. Recovery
names channels by the class they belong to; alignment by the channel of the reference they were matched with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from canon.describe.arrays import Array


@dataclass(frozen=True, eq=False)
class Coordinates:
    """A name and factors for every channel of a space."""

    index: Array
    """Coordinate of each channel, int64; negative for a channel that is always zero."""

    size: int
    """Number of coordinates."""

    factors: Mapping[int, Array] = field(default_factory=dict)
    """Channel = factor x coordinate, by tap; 1 where a tap is not listed."""

    constants: Mapping[int, Array] = field(default_factory=dict)
    """By point: the value of channels that are constant there, NaN for the others."""

    @staticmethod
    def plain(width: int) -> Coordinates:
        """Every channel is its own coordinate."""
        return Coordinates(np.arange(width), width)

    def same(self, other: Coordinates) -> bool:
        """Whether these name channels in the same way, with the same factors and constants."""
        return (
            self.size == other.size
            and np.array_equal(self.index, other.index)
            and self.factors.keys() == other.factors.keys()
            and all(np.array_equal(factor, other.factors[tap]) for tap, factor in self.factors.items())
            and self.constants.keys() == other.constants.keys()
            and all(np.array_equal(known, other.constants[at], True) for at, known in self.constants.items())
        )

    @cached_property
    def place(self) -> Array:
        """Coordinate of each channel, 0 for one that is always zero: its factor is zero."""
        return np.maximum(self.index, 0)

    @cached_property
    def _present(self) -> Array:
        return self.index >= 0

    def factor(self, tap: int) -> Array:
        """The factor of each channel at a tap; zero for a channel that is always zero."""
        factor = self.factors.get(tap)
        return self._present.astype(np.float64) if factor is None else np.where(self._present, factor, 0.0)
