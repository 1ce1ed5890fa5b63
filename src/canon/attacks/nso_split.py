"""nso_split: one channel becomes several that add up to it."""

from __future__ import annotations

import math
from typing import ClassVar, final

from canon.attacks.channels import Channels
from canon.attacks.interface import Primitive, Setting


@final
class NsoSplit(Primitive):
    """Copies of a channel, whose outgoing weights are shares of its own.

    `Σₖ αₖ·v·σ(u·x) = v·σ(u·x)` when `Σₖ αₖ = 1`. The shares are dealt when all primitives are done.
    """

    name: ClassVar[str] = "nso_split"

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Split the channel at `⌊p·C⌋` of each block into `count + 1`."""
        index = min(channels.block - 1, math.floor(setting.options.split_position * channels.block))
        return channels.split(index, count)
