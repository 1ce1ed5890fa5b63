"""Channels that are read, but so weakly that it does not matter."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch

from canon.attacks.channels import Channels, Kind
from canon.attacks.interface import Preserves, Primitive, Setting


@final
class TinyColumn(Primitive):
    """Channels with any filter, whose outgoing weights are 10⁻³⁰ to 10⁻¹² of what is usual in the layer, not zero."""

    name: ClassVar[str] = "tiny_column"
    preserves: ClassVar[Preserves] = "nearly"

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Append dummies, each with a size of its own, equally likely in every power of ten."""
        low, high = (math.log10(end) for end in setting.options.tiny_range)
        drawn = torch.rand((channels.groups, count), generator=setting.generator, dtype=torch.float64)
        return channels.append(Kind.TINY, count, 10 ** (low + (high - low) * drawn))


@final
class NoisyClique(Primitive):
    """A clique whose outgoing weights sum to noise, by default of 10⁻⁵ of what is usual in the layer."""

    name: ClassVar[str] = "noisy_clique"
    preserves: ClassVar[Preserves] = "nearly"

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Append one clique to each block."""
        return channels.append(Kind.NOISY_CLIQUE, count, setting.options.clique_noise)
