"""Operands as what stands for them while a graph is built: shapes on the meta device, and numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from canon.errors import UnsupportedModelError
from canon.io.onnx.values import Activation, Constant, Size, Sizes


def settled(value: Sizes) -> Constant:
    """Sizes as plain numbers, where the input does not decide them."""
    constant = value.constant()
    if constant is None:
        raise UnsupportedModelError(
            "a size that the input decides is used as a number",
            hint="Give the size of one input, such as --size 3x224x224, or export the model with fixed sizes",
        )
    return constant


def hint(value: Any, index: int) -> Any:
    """What stands for an operand, for one of the two choices of open sizes."""
    if isinstance(value, (Activation, Size)):
        return value.hints[index]
    return torch.empty_like(value.tensor, device="meta") if isinstance(value, Constant) else value


def any_of(operands: Any, kinds: tuple[type, ...]) -> bool:
    """Whether any operand is of one of these kinds, however nested."""
    found: list[bool] = []
    map_aggregate(operands, lambda v: found.append(isinstance(v, kinds)))
    return any(found)


def method(name: str, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """A method of a tensor, called by its name."""
    return getattr(x, name)(*args, **kwargs)
