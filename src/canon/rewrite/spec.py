"""SpaceRewrite: one change to one space, as it concerns rows, per-channel parameters and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from canon.transforms import ChannelTransform


@dataclass(frozen=True, eq=False)
class SpaceRewrite:
    """`(L, M, b)`: new channels are `y' = L·y`, old ones `y = M·y' + b`.

    Rows follow with `L`, columns with `W·M`, and what reads constants with `W·b`. Both matrices may differ from tap to
    tap in their numbers, and `b` from point to point.
    """

    before: int
    """Channels before."""

    source: Tensor
    """Channel before that channel k after takes its per-channel parameters from, int64."""

    transform: ChannelTransform
    """M, but for `factors` and `transforms`."""

    gains: Mapping[int, Tensor] = field(default_factory=dict)
    """Factor of channel k after, by tap; 1 at taps that are not listed."""

    factors: Mapping[int, Tensor] = field(default_factory=dict)
    """By tap: channel j before is so many times what `transform` says."""

    transforms: Mapping[int, ChannelTransform] = field(default_factory=dict)
    """M by tap, where it differs in more than that."""

    rows: Mapping[int, ChannelTransform] = field(default_factory=dict)
    """L by tap, transposed, where it is more than `source` and `gains`."""

    constants: Mapping[int, Tensor] = field(default_factory=dict)
    """b by point; zero at points that are not listed."""

    @property
    def after(self) -> int:
        """Channels after."""
        return int(self.source.numel())

    def gain(self, tap: int) -> Tensor | None:
        """The factors at a tap, or None when all are 1."""
        return self.gains.get(tap)

    def at(self, tap: int) -> ChannelTransform:
        """M at a tap."""
        if tap in self.transforms:
            return self.transforms[tap]
        return self.transform.weighted(self.factors[tap]) if tap in self.factors else self.transform

    def rows_at(self, tap: int) -> ChannelTransform:
        """L at a tap, transposed: `before x after`, as M is."""
        if tap in self.rows:
            return self.rows[tap]
        gain = self.gains.get(tap)
        gain = torch.ones(self.after, dtype=torch.float64) if gain is None else gain
        return ChannelTransform.expansion(self.source, gain, self.before)

    @staticmethod
    def permutation(order: Tensor) -> SpaceRewrite:
        """Channel `k` after is channel `order[k]` before."""
        return SpaceRewrite(order.numel(), order, ChannelTransform.permutation(order))

    @staticmethod
    def scaling(width: int, scales: Mapping[int, Tensor]) -> SpaceRewrite:
        """Each tap's channels are multiplied by that tap's scales."""
        return SpaceRewrite(
            width,
            torch.arange(width),
            ChannelTransform.identity(width),
            dict(scales),
            {tap: 1 / scale for tap, scale in scales.items()},
        )

    @staticmethod
    def merge(keep: Tensor, into: Tensor, factors: Mapping[int, Tensor]) -> SpaceRewrite:
        """Channels `keep` remain; channel `j` before is `factors[tap][j]` times channel `into[j]` after, or zero."""
        ones = torch.ones(into.numel(), dtype=torch.float64)
        return SpaceRewrite(into.numel(), keep, ChannelTransform.merge(into, ones, keep.numel()), {}, factors)

    @staticmethod
    def expansion(source: Tensor, share: Tensor, before: int) -> SpaceRewrite:
        """Channel `k` after is a copy of `source[k]`; consumers give it the share `share[k]`."""
        return SpaceRewrite(before, source, ChannelTransform.expansion(source, share, before))
