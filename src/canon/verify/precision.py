"""Models of different float types: what they can be compared to, and copies that are computed with."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from canon.graph.mapped import is_mapped
from canon.graph.tensors import tensor_names
from canon.graph.widening import is_large

ROUNDINGS: Final = 4
"""Residuals of this many roundings are no difference: weights were rounded once, and sums of them more than once."""

SINGLE: Final = torch.finfo(torch.float32).eps
"""Models of this precision are exact as far as comparisons go."""


@dataclass(frozen=True)
class Precision:
    """The float types of two models."""

    suspect: str
    owner: str
    epsilon: float
    """The step between 1 and the next number, in the coarser of both."""

    @property
    def compared(self) -> str:
        """The coarser type: models are compared to this precision."""
        return max(self.suspect, self.owner, key=lambda name: torch.finfo(getattr(torch, name)).eps)

    def tolerance(self, asked: float) -> float:
        """The tolerance that was asked for, or what the coarser type allows."""
        return max(asked, ROUNDINGS * self.epsilon)

    @staticmethod
    def of(suspect: nn.Module, owner: torch.dtype = torch.float32) -> Precision:
        """The coarsest float types that two models hold; an owner that is not at hand counts as float32."""
        mine, yours = coarsest(suspect), owner
        epsilon = max(torch.finfo(mine).eps, torch.finfo(yours).eps)
        return Precision(_name(mine), _name(yours), epsilon)


def coarsest(model: nn.Module) -> torch.dtype:
    """The coarsest float type among a model's parameters and buffers; float32 where there is none.

    Types of less than two bytes do not count: at their precision everything would agree with everything.
    """
    tensors = tensor_names(model)[0].values()
    found = {tensor.dtype for tensor in tensors if tensor.is_floating_point() and tensor.element_size() > 1}
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def widened(model: nn.Module) -> nn.Module:
    """The model, or a copy in float32 where its types are not all float32 or all float64.

    A model that lies in files stays as it is: what is compared is widened layer by layer.
    """
    if any(map(is_mapped, tensor_names(model)[0].values())) and is_large(model):
        return model
    found = {tensor.dtype for tensor in tensor_names(model)[0].values() if tensor.is_floating_point()}
    return model if found in ({torch.float32}, {torch.float64}, set()) else copy.deepcopy(model).float()


def alike(first: nn.Module, second: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Both models in one float type that can be computed with: float64 if both are, else float32."""
    one, two = widened(first), widened(second)
    if coarsest(one) == coarsest(two):
        return one, two
    return tuple(copy.deepcopy(m).float() if coarsest(m) != torch.float32 else m for m in (one, two))  # type: ignore[return-value]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
