"""What is known of one space of the suspect: whose channels they are, and how large each is beside the owner's."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from canon.containment.matching import Accepted, Pairs
from canon.containment.yardstick import Yardstick

ROUNDING: Final = 5e-7
"""A factor this near to 1 is 1, so that what was not scaled stays bit for bit."""

GRAIN: Final = 2e-2
"""The same where the owner's scales come from the portrait of a key."""

USUAL: Final = 0.8
LARGEST: Final = 8.0
"""Factors as near to 1 as rows are to the owner's, in units of that angle: the median of a space, and all of it."""


@dataclass(eq=False)
class Found:
    """What is known of one space after a sweep."""

    accepted: Accepted
    pairs: Pairs
    yardstick: Yardstick
    bar: float
    leader: Tensor
    features: Tensor
    """For every channel of the owner's: what is known of the suspect's channel that is most like it; float32."""

    silent: Tensor
    """For every channel of the owner's: whether nothing that reads it sees it change."""

    grain: float = ROUNDING
    """How exactly the owner's scales are known."""

    factors: dict[int, Tensor] = field(default_factory=dict)
    """By tap: the suspect's channel over the owner's."""

    mirror: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """For every channel of the owner's the suspect's channel that stands for it as its mirror image, or -1; empty: not
    looked for."""

    mirror_gains: dict[int, Tensor] = field(default_factory=dict)
    """By tap: what makes the owner's channel of its mirror image's row."""

    @property
    def images(self) -> Tensor:
        """For every channel of the owner's: whether a mirror image stands for it."""
        return self.mirror >= 0 if self.mirror.numel() else torch.zeros_like(self.silent)

    @property
    def mirrored(self) -> bool:
        """Whether any row comes from a mirror image."""
        return bool(self.images.any())

    @cached_property
    def settled(self) -> dict[int, Tensor]:
        """Factors, with 1 where they are 1 as far as can be told: order alone was changed, or nothing."""
        here = self.accepted.match >= 0
        angle = (2 * (1 - self.pairs.cosine).clamp(min=0)).sqrt().clamp(min=self.grain)
        single = int(here.sum()) == int(self.accepted.found.sum())
        settled = {}
        for tap, factor in self.factors.items():
            gap = (factor - 1).abs()
            near = gap[here] / angle[here]
            if single and near.numel() and float(near.median()) <= USUAL and float(near.max()) <= LARGEST:
                settled[tap] = torch.ones_like(factor)
            else:
                settled[tap] = factor.masked_fill(gap <= ROUNDING, 1.0).masked_fill(~here, 1.0)
        return settled

    @property
    def rescaled(self) -> frozenset[int]:
        """Taps at which channels are brought to the owner's scale."""
        return frozenset(tap for tap, factor in self.settled.items() if not bool((factor == 1).all()))
