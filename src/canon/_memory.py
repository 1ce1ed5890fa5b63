"""Memory on the host, where touching a page for the first time costs several times what copying it does.

What is written over and over is kept, and what is handed out lies in slabs, for which the system may take pages of two
megabytes: numpy asks it to, torch does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SLAB: Final = 1 << 24
"""Bytes that are asked for at once."""

LARGE: Final = SLAB // 4
"""Bytes from which on a tensor is worth memory of its own, and numpy asks for large pages."""

ALIGNMENT: Final = 64
"""Bytes at whose multiples tensors begin."""

_Bytes = NDArray[Any]

Empty = Callable[[Sequence[int], Tensor], Tensor]
"""Makes a tensor of some shape, of the type and in the place of a given one, with anything in it."""


def separate(shape: Sequence[int], like: Tensor) -> Tensor:
    """A tensor in memory of its own."""
    size = prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < LARGE:
        return like.new_empty(tuple(shape))
    return _view(np.empty(size, dtype=np.uint8), shape, like.dtype)


class Slabs:
    """Memory for many tensors that stay together, like those of one model. Each has a storage of its own."""

    def __init__(self) -> None:
        self._slab: _Bytes = np.empty(0, dtype=np.uint8)
        self._used = 0

    def empty(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of some shape, of the type and in the place of a given one, with anything in it."""
        size = prod(shape) * like.element_size()
        if like.device.type != "cpu" or not 0 < size < LARGE:
            return separate(shape, like)
        if self._used + size > self._slab.size:
            self._slab = np.empty(SLAB, dtype=np.uint8)
            self._used = -self._slab.ctypes.data % ALIGNMENT
        start = self._used
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return _view(self._slab[start : start + size], shape, like.dtype)


_kept = threading.local()


def scratch(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory to compute in. On the host a thread gets the same every time: one call at a time has the use of it."""
    size = prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    kept: _Bytes | None = getattr(_kept, "bytes", None)
    if kept is None or kept.size < size:
        kept = _kept.bytes = np.empty(size, dtype=np.uint8)
    return _view(kept[:size], shape, dtype)


def _view(memory: _Bytes, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(memory).view(dtype).view(tuple(shape))
