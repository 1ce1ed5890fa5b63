"""entangled: dummies that cancel only all together."""

from __future__ import annotations

from typing import ClassVar, final

import torch

from canon.attacks.channels import Channels
from canon.attacks.interface import Primitive, Setting


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
