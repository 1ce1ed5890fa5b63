"""The three primitives of Yan et al.: channels without effect, that cancel each other, that add up to one."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch

from canon.attacks.channels import Channels, Kind
from canon.attacks.interface import Primitive, Setting


@final
class NsoZero(Primitive):
    """Null channels, in both forms: `σ(0)·v = 0` for any outgoing `v`, and `σ(u·x)·0 = 0` for any incoming `u`.

    The first form needs a space where zero arrives as zero: norms are given a shift that cancels their mean, but
    nothing helps against an activation with `σ(0) ≠ 0`. There all dummies take the second form.
    """

    name: ClassVar[str] = "nso_zero"

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Append dummies of the form asked for."""
        form = setting.options.zero_form
        if form == "out" or not setting.zero_arrives:
            return channels.append(Kind.ZERO_OUT, count)
        if form == "in":
            return channels.append(Kind.ZERO_IN, count)
        incoming = torch.rand((channels.groups, count), generator=setting.generator) < 0.5
        return channels.append(torch.where(incoming, int(Kind.ZERO_IN), int(Kind.ZERO_OUT)), count)


@final
class NsoClique(Primitive):
    """Channels with one incoming filter and outgoing weights that cancel: `Σₖ vₖ·σ(u·x) = 0` when `Σₖ vₖ = 0`."""

    name: ClassVar[str] = "nso_clique"

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Append one clique to each block."""
        return channels.append(Kind.CLIQUE, count)


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
