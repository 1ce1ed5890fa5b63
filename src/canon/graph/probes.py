"""Random inputs to compare outputs on, in the shapes that the example has.

A file may fix its batch size, and recurrent state counts its batch on another axis than images do. So no axis is grown:
more samples are more inputs.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_MOST: Final = 64
"""Inputs that are made at most, however few samples one holds."""


def probes(example: Tensor | tuple[Any, ...], count: int, seed: int = 0) -> tuple[tuple[Any, ...], ...]:
    """Inputs for a forward pass, which together hold at least `count` samples; each has the shapes of the example.

    Floating point tensors are drawn anew, on their device and in their type; whole numbers between the smallest and
    the largest of the example's, so that indices and lengths stay valid; a mask of zeros and ones keeps a one in its
    first position. Anything else stays as it is.

    >>> [tuple(x.shape) for x, state in probes((torch.zeros(4, 7), torch.zeros(1, 4, 3)), 8)]
    [(4, 7), (4, 7)]
    """
    given = example if isinstance(example, tuple) else (example,)
    first = next((x for x in given if _is_drawn(x)), None)
    if first is None:
        return (given,)
    generator = torch.Generator().manual_seed(seed)
    samples = max(1, int(first.shape[0])) if first.ndim > 1 else 1
    number = min(-(-count // samples), _MOST)
    return tuple(tuple(_drawn(x, generator) if _is_drawn(x) else x for x in given) for _ in range(number))


def _is_drawn(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype != torch.bool and x.ndim > 0 and x.numel() > 0


def _drawn(x: Tensor, generator: torch.Generator) -> Tensor:
    if x.is_floating_point():
        return torch.randn(x.shape, generator=generator).to(x.device, x.dtype)
    return drawn_whole(x, tuple(x.shape), generator)


def drawn_whole(x: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Whole numbers between the smallest and the largest of `x`, in another shape."""
    low, high = int(x.min()), int(x.max())
    found = torch.randint(low, high + 1, shape, generator=generator)
    if (low, high) == (0, 1) and found.ndim > 1:
        found[..., 0] = 1  # nothing would be left to attend to where a mask hides all
    return found.to(x.device, x.dtype)
