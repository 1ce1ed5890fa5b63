"""Random numbers at the speed of a copy.

Drawing a normal number costs several times what writing one does, and an attack writes little else. So one long strip is
drawn once, and every filter is a window of it that begins where no other filter of the layer does. The strip is drawn on
the CPU, so that one seed gives the same numbers on every device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RANGE = 2**16
"""How far apart windows can begin at least."""


@dataclass(frozen=True, eq=False)
class Noise:
    """A source of random filters."""

    strip: Tensor
    """Standard normal numbers, on the CPU."""

    generator: torch.Generator

    @staticmethod
    def of(longest: int, most: int, generator: torch.Generator) -> Noise:
        """For filters of up to `longest` entries, and up to `most` of them in a layer."""
        size = 2 * (longest + max(RANGE, most))
        return Noise(torch.randn(size, generator=generator), generator)

    def windows(self, length: int, count: int, like: Tensor) -> Windows:
        """Up to `count` different filters of `length` entries, of the dtype and device of a tensor."""
        reach = max(RANGE, count)
        start = int(torch.randint(self.strip.numel() - length - reach + 1, (), generator=self.generator))
        part = self.strip[start : start + length + reach].to(like)
        step = reach // max(1, count)
        offsets = torch.arange(count) * step + torch.randint(step, (count,), generator=self.generator)
        return Windows(part, offsets.to(like.device), length)


@dataclass(frozen=True, eq=False)
class Windows:
    """The filters of one layer."""

    part: Tensor
    offsets: Tensor
    length: int

    def take(self, which: Tensor, length: int, mean: float, deviation: float) -> Tensor:
        """Filters by number, cut to `length`, with this mean and deviation: `[len(which), length]`."""
        scaled = self.part * deviation + mean
        begins = scaled.numel() - self.length + 1
        view = scaled.as_strided((begins, length), (1, 1))
        return view.index_select(0, self.offsets[which.to(self.part.device)])
