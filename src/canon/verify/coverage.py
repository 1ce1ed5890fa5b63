"""What a comparison covers: every parameter and buffer that the forward pass uses, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from canon.graph.experts import named_apart
from canon.verify.operations import operations_of


@dataclass(frozen=True)
class Uncompared:
    """A tensor of the owner's that nothing was held against."""

    what: str
    numbers: int
    why: str


@dataclass(frozen=True)
class Coverage:
    """How much of a model was compared."""

    numbers: int
    """Numbers of the owner's model that the forward pass uses."""

    uncompared: tuple[Uncompared, ...] = ()
    """Those that were not compared, most numbers first."""

    @property
    def share(self) -> float:
        """Share of the numbers that were compared."""
        missing = sum(item.numbers for item in self.uncompared)  # as many as a key says
        return max(0.0, 1 - missing / self.numbers) if self.numbers else 0.0

    @property
    def complete(self) -> bool:
        """Whether every number was compared."""
        return self.numbers > 0 and not self.uncompared

    @staticmethod
    def of(tensors: Mapping[str, Tensor], uncompared: Iterable[Uncompared] = ()) -> Coverage:
        """Of these tensors, all but some."""
        items = sorted(uncompared, key=lambda item: -item.numbers)
        return Coverage(sum(tensor.numel() for tensor in tensors.values()), tuple(items))


NOTHING: Final = Coverage(0)
"""Nothing was compared."""


def used_tensors(model: nn.Module, example: Tensor | tuple[Any, ...]) -> tuple[str, ...]:
    """The parameters and buffers that the forward pass uses, by first name, in the order of their first use.

    Whatever an operation is given counts as used.

    >>> import torch
    >>> used_tensors(nn.BatchNorm1d(4).eval(), torch.zeros(2, 4))
    ('weight', 'bias', 'running_mean', 'running_var')
    """
    found = dict.fromkeys(name for operation in operations_of(model, example) for name in operation.tensors)
    return named_apart(found, model)
