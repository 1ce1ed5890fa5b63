"""Random numbers at the speed of a copy.

Drawing a normal number costs several times what writing one does, and an attack writes little else. So one long strip
is drawn once, and every filter is a window of it that begins where no other filter of the layer does. The strip is
drawn on the CPU, so that one seed gives the same numbers on every device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RANGE = 2**14
"""Windows of one layer begin within a stretch of at least this length."""


@dataclass(frozen=True, eq=False)
class FilterSource:
    """A source of random filters."""

    strip: Tensor
    """Standard normal numbers, on the CPU."""

    generator: torch.Generator

    @staticmethod
    def of(longest: int, most: int, generator: torch.Generator) -> FilterSource:
        """For filters of up to `longest` entries, and up to `most` of them in a layer."""
        size = 2 * (longest + max(RANGE, most))
        return FilterSource(torch.randn(size, generator=generator), generator)

    def windows(self, length: int, count: int, like: Tensor) -> Windows:
        """Up to `count` different filters of up to `length` entries, of the dtype and device of a tensor."""
        reach = max(RANGE, count)
        start = int(torch.randint(self.strip.numel() - length - reach + 1, (), generator=self.generator))
        step = reach // max(1, count)
        offsets = torch.arange(count) * step + torch.randint(step, (count,), generator=self.generator)
        return Windows(self.strip[start : start + length + reach].to(like), offsets.to(like.device), length)


@dataclass(frozen=True, eq=False)
class Windows:
    """The filters of one layer."""

    part: Tensor
    """The stretch they are windows of."""

    offsets: Tensor
    """Where each begins."""

    length: int
    """Entries of the longest."""

    def spread(self, mean: float, deviation: float) -> Windows:
        """The same filters with this mean and deviation."""
        return Windows((self.part * deviation).add_(mean), self.offsets, self.length)

    def take(self, which: Tensor, length: int, out: Tensor | None = None) -> Tensor:
        """Filters by number, cut to `length`: `[len(which), length]`, given or written there."""
        view = self.part.as_strided((self.part.numel() - self.length + 1, length), (1, 1))
        return torch.index_select(view, 0, self.offsets.index_select(0, which), out=out)
