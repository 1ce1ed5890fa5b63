"""nso_split: one channel becomes several that add up to it."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from canon.attacks.channels import Channels
from canon.attacks.interface import Primitive, Setting


@final
class NsoSplit(Primitive):
    """Copies of a channel whose outgoing weights are shares of its own: `Σₖ αₖ·v·σ(u·x) = v·σ(u·x)` when `Σₖ αₖ = 1`."""

    name: ClassVar[str] = "nso_split"

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Split the channel at `⌊p·C⌋` of each block into `count + 1`."""
        index = min(channels.block - 1, math.floor(setting.options.split_position * channels.block))
        return channels.split(index, self._shares(channels.groups, count + 1, setting))

    def _shares(self, groups: int, copies: int, setting: Setting) -> Tensor:
        if setting.options.split_shares == "equal":
            return torch.full((groups, copies), 1 / copies, dtype=torch.float64)
        # Of either sign, of the size of an equal share, and exact in sum: what the others leave is spread evenly.
        free = torch.randn((groups, copies), generator=setting.generator, dtype=torch.float64)
        return (1 + free - free.mean(1, keepdim=True)) / copies
