"""Results on meta tensors by arithmetic, for the operations that models are mostly made of.

Running an operation on tensors without data costs more than all rules together. What is known here gives what it would;
None, for anything out of the ordinary, asks for the run, which also tells what is wrong with an example.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.graph.modules import SHAPE_KEEPING, hooked
from canon.graph.values import Value

MOST: Final = 1 << 58
"""Entries of the largest result that anybody could name."""

_CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_JOINING: Final = frozenset({operator.add, operator.mul, operator.sub, torch.add, torch.mul, torch.sub})
_KEEPING: Final = frozenset(
    {functional.relu, functional.silu, functional.gelu, torch.relu, torch.sigmoid, torch.tanh, torch.abs, torch.neg,
     operator.neg}
)  # fmt: skip
_JOINING_IN_PLACE: Final = frozenset({operator.iadd, operator.imul, operator.isub})


def layer_result(module: nn.Module, args: Sequence[Any]) -> Tensor | None:
    """What a layer makes of its one operand."""
    kind = type(module)
    if len(args) != 1 or not isinstance(args[0], Value) or hooked(module):
        return None
    x = args[0].data
    if kind in SHAPE_KEEPING:
        return x
    if not _ordinary(x):
        return None
    if kind in _CONVOLUTIONS:
        return _convolution(module, x)
    if kind is nn.AdaptiveAvgPool2d and x.ndim == 4 and module.output_size in (1, (1, 1)):
        return _empty((*x.shape[:2], 1, 1), x)
    return None


def function_result(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor | None:
    """What a function makes of its operands."""
    if function is torch.cat:
        return _concatenation(*args, **kwargs) if args and not kwargs.keys() - {"dim"} else None
    if function in _KEEPING:
        # In place or not: only the shape counts.
        return args[0].data if args and isinstance(args[0], Value) and args[0].data.is_floating_point() else None
    if kwargs or len(args) != 2 or not all(isinstance(a, Value) and _ordinary(a.data) for a in args):
        return None
    x, y = args[0].data, args[1].data
    if x.dtype != y.dtype:
        return None
    if function in _JOINING_IN_PLACE:
        return x if x.shape == y.shape else None
    if function not in _JOINING or x.ndim != y.ndim:
        return None
    pairs = list(zip(x.shape, y.shape, strict=True))
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        return None
    return _empty([a if b == 1 else b for a, b in pairs], x)


def _convolution(module: Any, x: Tensor) -> Tensor | None:
    weight, bias = module.weight, module.bias
    rank = weight.ndim - 2
    ordinary = x.ndim == rank + 2 and x.dtype == weight.dtype and x.shape[1] == weight.shape[1] * module.groups
    if not ordinary or module.padding_mode != "zeros" or isinstance(module.padding, str):
        return None
    if bias is not None and (bias.dtype != x.dtype or bias.shape != weight.shape[:1]):
        return None
    sizes = []
    for axis in range(rank):
        reach = module.dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        sizes.append((x.shape[2 + axis] + 2 * module.padding[axis] - reach) // module.stride[axis] + 1)
    return _empty((x.shape[0], weight.shape[0], *sizes), x) if min(sizes) > 0 else None


def _concatenation(tensors: Any, dim: Any = 0) -> Tensor | None:
    if not isinstance(tensors, list | tuple) or not tensors or type(dim) is not int:
        return None
    if not all(isinstance(t, Value) and _ordinary(t.data) for t in tensors):
        return None
    first, shapes = tensors[0].data, [tuple(t.shape) for t in tensors]
    if not -first.ndim <= dim < first.ndim or any(t.data.dtype != first.dtype for t in tensors):
        return None
    axis = dim % first.ndim
    if len({(*shape[:axis], None, *shape[axis + 1 :]) for shape in shapes}) > 1:
        return None
    shape = list(shapes[0])
    shape[axis] = sum(s[axis] for s in shapes)
    return _empty(shape, first)


def _ordinary(x: Tensor) -> bool:
    """Whether results are laid out in memory as one would expect."""
    return x.ndim > 1 and x.is_meta and x.is_floating_point() and x.is_contiguous()


def _empty(shape: Sequence[int], like: Tensor) -> Tensor | None:
    """A result of that shape; None where no memory could hold it: torch then says so itself."""
    return torch.empty(shape, dtype=like.dtype, device="meta") if prod(shape) < MOST else None
