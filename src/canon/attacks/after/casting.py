"""float16, bfloat16: the precision that models are passed around in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from canon.attacks.after.interface import Step, change_parameters


@dataclass(frozen=True)
class Cast(Step):
    """Every parameter is rounded to what a type can hold. It keeps its own type, so the model takes the same inputs."""

    dtype: ClassVar[torch.dtype]

    def apply(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """Round, and keep what is too large for the type at its end."""
        return change_parameters(model, self._change)

    def _change(self, tensor: Tensor) -> Tensor:
        largest = torch.finfo(self.dtype).max
        return tensor.clamp(-largest, largest).to(self.dtype).to(tensor.dtype)


@final
@dataclass(frozen=True)
class Float16(Cast):
    """Rounded to IEEE half precision."""

    name: ClassVar[str] = "float16"
    dtype: ClassVar[torch.dtype] = torch.float16


@final
@dataclass(frozen=True)
class BFloat16(Cast):
    """Rounded to bfloat16."""

    name: ClassVar[str] = "bfloat16"
    dtype: ClassVar[torch.dtype] = torch.bfloat16
