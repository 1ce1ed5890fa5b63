"""prune: the smallest weights become zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from canon.attacks.after.interface import Step, change_parameters
from canon.errors import AttackError


@final
@dataclass(frozen=True)
class Prune(Step):
    """The smallest weights of every matrix and kernel, tensor by tensor; biases and norms stay."""

    name: ClassVar[str] = "prune"

    share: float = 0.3
    """Which share of each tensor becomes zero."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise AttackError(f"the share to prune must be in (0, 1), got {self.share}")

    def apply(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """Zeros for the smallest by magnitude."""
        return change_parameters(model, self._change, smallest=2)

    def _change(self, tensor: Tensor) -> Tensor:
        count = int(self.share * tensor.numel())
        if not count:
            return tensor.clone()
        smallest = tensor.abs().flatten().kthvalue(count).values
        return torch.where(tensor.abs() <= smallest, 0.0, tensor)
