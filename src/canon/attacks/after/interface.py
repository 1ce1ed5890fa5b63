"""What a step is: a change to the weights of a finished model, named by a short text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor, nn

from canon.graph.tensors import tensor_names
from canon.rewrite import replace_tensors


@dataclass(frozen=True)
class Step(ABC):
    """A change to a model. Its fields are its settings; those that its `repr` leaves out are not written down."""

    name: ClassVar[str]
    """What users call it."""

    @abstractmethod
    def apply(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """A changed copy; the generator is the only source of randomness."""

    @property
    def spec(self) -> str:
        """The text that gives this step again: its name, and every setting that is not the usual one."""
        settings = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if field.repr and getattr(self, field.name) != field.default
        ]
        return f"{self.name}:{','.join(settings)}" if settings else self.name


def change_parameters(model: nn.Module, change: Callable[[Tensor], Tensor], smallest: int = 0) -> nn.Module:
    """A copy with every parameter of at least so many dimensions changed; buffers, a norm's statistics say, stay."""
    own = {id(parameter) for parameter in model.parameters()}
    tensors = tensor_names(model)[0]
    with torch.no_grad():
        changed = {
            name: change(tensor.detach()).to(tensor.dtype)
            for name, tensor in tensors.items()
            if id(tensor) in own and tensor.is_floating_point() and tensor.ndim >= smallest
        }
        return replace_tensors(model, changed)
