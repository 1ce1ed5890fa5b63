"""round: whole numbers of few bits, times a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from canon.attacks.after.interface import Step, change_parameters
from canon.errors import AttackError


@final
@dataclass(frozen=True)
class Round(Step):
    """Symmetric rounding of every matrix and kernel to `2^bits − 1` levels; biases and norms stay, as is usual.

    `w ← s·round(w/s)` with `s = max|w| / (2^(bits−1) − 1)`. The numbers keep their type.
    """

    name: ClassVar[str] = "round"

    bits: int = 8
    """Bits of a number, from 2 to 16."""

    per: str = "tensor"
    """What has one scale: a `tensor`, or each `channel`, that is entry of the first axis."""

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise AttackError(f"rounding is to 2 to 16 bits, got {self.bits}")
        if self.per not in ("tensor", "channel"):
            raise AttackError(f"a scale is per 'tensor' or 'channel', got '{self.per}'")

    def apply(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """Round."""
        return change_parameters(model, self._change, smallest=2)

    def _change(self, tensor: Tensor) -> Tensor:
        wide = tensor.double()
        axes = tuple(range(wide.ndim)) if self.per == "tensor" else tuple(range(1, wide.ndim))
        scale = wide.abs().amax(axes, keepdim=True) / (2 ** (self.bits - 1) - 1)
        return torch.where(scale > 0, torch.round(wide / scale) * scale, wide)
