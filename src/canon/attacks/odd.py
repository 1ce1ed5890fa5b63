"""Channels that cancel, or give another one, only in groups of which no two are proportional.

For ReLU, GELU, SiLU, Hardswish and all others whose odd part is linear, `f(u) − f(−u)` is a multiple of `u`.
"""

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


@final
class OddReplace(Primitive):
    """Five channels instead of one: `f(u) = f(−u) + f(u/2 + r) − f(−u/2 − r) + f(u/2 − r) − f(−u/2 + r)`.

    `r` is noise. None of the five has the filter `u`, and no two are proportional.
    """

    name: ClassVar[str] = "odd_replace"

    def obstacle(self, setting: Setting) -> str | None:
        """The five give one only where odd parts are linear."""
        return setting.place.odd_obstacle

    def count(self, channels: Channels, setting: Setting) -> int:
        """Four for each channel replaced, as many as there are channels that nobody has touched."""
        possible = int(channels.whole.sum(1).min())
        return 4 * min(possible, -(-super().count(channels, setting) // 4))

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Replace channels drawn at random."""
        keys = torch.rand(channels.kind.shape, generator=setting.generator)
        keys[~channels.whole] = 2.0
        return channels.disperse(keys.argsort(1)[:, : count // 4])


@final
class Entangled(Primitive):
    """One group for the whole block: pairs `f(±aⱼ)` and `f(±Σ cⱼ·aⱼ)` with random `c`.

    No part of the group cancels without the rest. Chained, its members read the groups of the layers before with
    weights that do not cancel, and feed those of the layers behind.
    """

    name: ClassVar[str] = "entangled"

    def obstacle(self, setting: Setting) -> str | None:
        """Groups cancel only where odd parts are linear."""
        return setting.place.odd_obstacle

    def count(self, channels: Channels, setting: Setting) -> int:
        """Pairs, at least three."""
        return 2 * max(3, -(-super().count(channels, setting) // 2))

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Append one group to each block."""
        pairs = count // 2 - 1
        drawn = torch.rand((2, channels.groups, pairs), generator=setting.generator, dtype=torch.float64)
        sign = torch.where(drawn[1] < 0.5, -1.0, 1.0)
        # The sum of many filters is as loud as one of them.
        return channels.cancel(sign * (0.5 + drawn[0]) / max(1.0, pairs**0.5))
