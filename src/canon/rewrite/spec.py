"""SpaceRewrite: one change to one space, as it concerns rows, per-channel parameters and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from canon.transforms import ChannelTransform


@dataclass(frozen=True, eq=False)
class SpaceRewrite:
    """`y_after[k] = gain[k] · y_before[source[k]]` for rows, `y_before = M · y_after` for columns.

    Both may differ from tap to tap in their numbers, never in their pattern: a channel goes to one place.
    """

    before: int
    """Channels before."""

    source: Tensor
    """Channel before that channel k after is made from, int64."""

    transform: ChannelTransform
    """M at every tap that is not listed in `transforms`."""

    gains: Mapping[int, Tensor] = field(default_factory=dict)
    """Factor of channel k after, by tap; 1 at taps that are not listed."""

    transforms: Mapping[int, ChannelTransform] = field(default_factory=dict)
    """M by tap."""

    @property
    def after(self) -> int:
        """Channels after."""
        return int(self.source.numel())

    def gain(self, tap: int) -> Tensor | None:
        """The factors at a tap, or None when all are 1."""
        return self.gains.get(tap)

    def at(self, tap: int) -> ChannelTransform:
        """M at a tap."""
        return self.transforms.get(tap, self.transform)

    @staticmethod
    def permutation(order: Tensor) -> SpaceRewrite:
        """Channel `k` after is channel `order[k]` before."""
        transform = ChannelTransform.permutation(order)
        return SpaceRewrite(order.numel(), order, transform)

    @staticmethod
    def scaling(width: int, scales: Mapping[int, Tensor]) -> SpaceRewrite:
        """Each tap's channels are multiplied by that tap's positive scales."""
        return SpaceRewrite(
            width,
            torch.arange(width),
            ChannelTransform.identity(width),
            dict(scales),
            {tap: ChannelTransform.scaling(scale) for tap, scale in scales.items()},
        )

    @staticmethod
    def merge(keep: Tensor, into: Tensor, factors: Mapping[int, Tensor]) -> SpaceRewrite:
        """Channels `keep` remain; channel `j` before is `factors[tap][j]` times channel `into[j]` after, or zero."""
        after, width = keep.numel(), into.numel()
        ones = torch.ones(width, dtype=torch.float64)
        return SpaceRewrite(
            width,
            keep,
            ChannelTransform.merge(into, ones, after),
            {},
            {tap: ChannelTransform.merge(into, factor, after) for tap, factor in factors.items()},
        )

    @staticmethod
    def expansion(source: Tensor, share: Tensor, before: int) -> SpaceRewrite:
        """Channel `k` after is a copy of `source[k]`; consumers give it the share `share[k]`."""
        return SpaceRewrite(before, source, ChannelTransform.expansion(source, share, before))
