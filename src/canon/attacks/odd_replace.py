"""odd_replace: channels of the original that no longer stand anywhere."""

from __future__ import annotations

from typing import ClassVar, final

import torch

from canon.attacks.channels import Channels
from canon.attacks.interface import Primitive, Setting


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
