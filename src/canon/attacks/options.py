"""AttackOptions: everything that decides what an attack does, checked before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypedDict

from canon.errors import AttackError

MIX: tuple[str, ...] = ("mix-opseq", "mix-opseq-per-merge-group")
"""Not primitives: ways to sample a sequence of primitives, for the whole model or for each space."""

ZeroForm = Literal["mixed", "in", "out"]
ShareForm = Literal["equal", "random"]


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """What to inject, where, and under which camouflage."""

    ops: tuple[str, ...]
    """Primitives applied one after the other, or one of `MIX` alone."""

    ratio: float = 0.2
    """ρ: each primitive adds `⌈ρ·C⌉` channels, `C` being the width at that step; where it adds groups, whole ones."""

    seed: int = 0
    """Seed of everything random."""

    permute: bool = True
    """Shuffle each space. Without it the original channels keep their order, and injected ones stand between them."""

    scale: bool = True
    """Scale each channel by a positive factor wherever that leaves the function as it is."""

    scale_range: tuple[float, float] = (0.6, 1.4)
    """The factors are uniform between these."""

    anchor: str | None = None
    """The one space that is scaled; None: all of them."""

    chain: bool = True
    """Dummies read dummies: with arbitrary weights, and cliques without cancelling them."""

    expand_kernels: bool = False
    """Grow convolution kernels from k to k+2, with zeros where the kernel must keep its effect."""

    zero_form: ZeroForm = "mixed"
    """Which side of a zero dummy is zero: incoming, outgoing, or either at random."""

    split_position: float = 1.0
    """p: the channel at `⌊p·C⌋`, clipped, is split."""

    split_shares: ShareForm = "equal"
    """Shares of the copies: `1/k` each (with `scale`, give or take an eighth), or random ones of either sign."""

    tiny_range: tuple[float, float] = (1e-30, 1e-12)
    """How small the outgoing weights of `tiny_column` are, relative to the layer's own."""

    clique_noise: float = 1e-5
    """How far the outgoing weights of `noisy_clique` are from cancelling, relative to the layer's own."""

    sequence_length: int = 3
    """How many primitives `MIX` samples."""

    select: tuple[str, ...] = ()
    """Only spaces whose name, or that of one of their layers, matches one of these patterns; empty: all."""

    only_convolutions: bool = False
    """Only spaces that convolutions make."""

    max_parameters: int | None = None
    """Refuse to build anything larger; None: larger than 10⁹, or than twice the model itself where that is more."""

    def __post_init__(self) -> None:
        ops = (self.ops,) if isinstance(self.ops, str) else tuple(self.ops)
        select = (self.select,) if isinstance(self.select, str) else tuple(self.select)
        object.__setattr__(self, "ops", ops)
        object.__setattr__(self, "select", select)
        object.__setattr__(self, "scale_range", tuple(self.scale_range))
        object.__setattr__(self, "tiny_range", tuple(self.tiny_range))
        if not ops:
            raise AttackError("no operation given", hint=f"Name primitives, or one of {', '.join(MIX)}")
        if len(ops) > 1 and any(op in MIX for op in ops):
            raise AttackError("a sampled sequence stands alone", hint=f"Give only '{MIX[0]}' or '{MIX[1]}'")
        if not 0 < self.ratio <= 1:
            raise AttackError(f"the ratio must be in (0, 1], got {self.ratio}")
        if not 0 <= self.split_position <= 1:
            raise AttackError(f"the split position must be in [0, 1], got {self.split_position}")
        low, high = self.scale_range
        if not (0 < low <= high and math.isfinite(high)):
            raise AttackError(f"scales must be positive and in order, got {low} to {high}")
        low, high = self.tiny_range
        if not 0 < low <= high <= 1:
            raise AttackError(f"tiny weights must be positive, at most 1 and in order, got {low} to {high}")
        if not 0 <= self.clique_noise <= 1:
            raise AttackError(f"the noise of cliques must be in [0, 1], got {self.clique_noise}")
        if self.sequence_length < 1:
            raise AttackError(f"a sequence has at least one primitive, got {self.sequence_length}")
        if self.zero_form not in ("mixed", "in", "out"):
            raise AttackError(f"zero_form is 'mixed', 'in' or 'out', got '{self.zero_form}'")
        if self.split_shares not in ("equal", "random"):
            raise AttackError(f"split_shares is 'equal' or 'random', got '{self.split_shares}'")


class MoreOptions(TypedDict, total=False):
    """The options of `AttackOptions` that `attack` takes by keyword."""

    scale_range: tuple[float, float]
    anchor: str | None
    chain: bool
    expand_kernels: bool
    zero_form: ZeroForm
    split_position: float
    split_shares: ShareForm
    tiny_range: tuple[float, float]
    clique_noise: float
    sequence_length: int
    select: tuple[str, ...]
    only_convolutions: bool
    max_parameters: int | None
