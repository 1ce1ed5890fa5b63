"""noise: every weight is a little different."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from canon.attacks.after.interface import Step, change_parameters
from canon.errors import AttackError


@final
@dataclass(frozen=True)
class Noise(Step):
    """`w ← w·(1 + relative·n) + absolute·s·n'` for every parameter, with normal `n` and the tensor's deviation `s`."""

    name: ClassVar[str] = "noise"

    relative: float = 0.0
    """Relative to each weight."""

    absolute: float = 0.0
    """Relative to the spread (the standard deviation) of the weights of its tensor."""

    def __post_init__(self) -> None:
        strengths = (self.relative, self.absolute)
        if not any(strengths) or not all(math.isfinite(strength) and strength >= 0 for strength in strengths):
            raise AttackError(f"noise needs a strength, relative or absolute, got {self.relative} and {self.absolute}")

    def apply(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """Draw noise for every parameter, in the order of the model."""
        return change_parameters(model, lambda tensor: self._change(tensor, generator))

    def _change(self, tensor: Tensor, generator: torch.Generator) -> Tensor:
        wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        result = wide
        if self.relative:
            result = wide * (1 + self.relative * _draw(wide, generator))
        if self.absolute and wide.numel() > 1:
            result = result + self.absolute * wide.std() * _draw(wide, generator)
        return result


def _draw(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers, the same on every device."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
