"""odd_group: channels that cancel in sixes, no two of them proportional."""

from __future__ import annotations

from typing import ClassVar, Final, final

import torch

from canon.attacks.channels import Channels
from canon.attacks.interface import Primitive, Setting

PAIRS: Final = 3
"""Pairs in a group; the last group takes what is left over."""


@final
class OddGroup(Primitive):
    """Groups `f(±a), f(±b), f(±(a + b))` that together give nothing.

    For ReLU, GELU, SiLU, Hardswish and all others whose odd part is linear, `f(u) − f(−u)` is a multiple of `u`, so
    `f(a) − f(−a) + f(b) − f(−b) − f(a + b) + f(−a − b) = 0`.
    """

    name: ClassVar[str] = "odd_group"

    def obstacle(self, setting: Setting) -> str | None:
        """Groups cancel only where odd parts are linear."""
        return setting.place.odd_obstacle

    def count(self, channels: Channels, setting: Setting) -> int:
        """Pairs, and at least one group of them."""
        return 2 * max(PAIRS, -(-super().count(channels, setting) // 2))

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Append as many groups as there can be."""
        pairs = count // 2
        sizes = [PAIRS] * (pairs // PAIRS)
        sizes[-1] += pairs % PAIRS
        for size in sizes:
            channels = channels.cancel(torch.ones(channels.groups, size - 1, dtype=torch.float64))
        return channels
