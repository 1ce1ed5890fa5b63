"""Operands as what stands for them while a graph is built: shapes on the meta device, and numbers."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.fx.node import map_aggregate
from torch.nn import functional

from canon.errors import SIZE_HINT, UnsupportedModelError
from canon.io.onnx.values import Activation, Constant, Size, Sizes

_KEEP: Final = frozenset(
    {
        functional.relu, functional.relu6, functional.silu, functional.gelu, functional.leaky_relu, functional.mish,
        functional.hardswish, functional.hardsigmoid, torch.sigmoid, torch.tanh, torch.neg, torch.abs, torch.exp,
        torch.sqrt, torch.erf, torch.clamp,
    }
)  # fmt: skip
"""Functions whose result is of the shape and type of their first operand."""

_JOIN: Final = frozenset({torch.add, torch.sub, torch.mul, torch.div})


def known_result(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """What the commonest functions make of shapes; torch takes a thousand times longer to say the same."""
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not first.is_floating_point():
        return None
    others = args[1:]
    if function in _KEEP and not any(isinstance(item, Tensor) for item in (*others, *kwargs.values())):
        return first
    if function not in _JOIN or kwargs or len(others) != 1:
        return None
    second = others[0]
    alike = isinstance(second, Tensor) and second.shape == first.shape and second.dtype == first.dtype
    return first if alike or isinstance(second, (int, float)) else None


def settled(value: Sizes) -> Constant:
    """Sizes as plain numbers, where the input does not decide them."""
    constant = value.constant()
    if constant is None:
        raise UnsupportedModelError(
            "a size that the input decides is used as a number",
            hint=SIZE_HINT,
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
