"""Memory on the host, where touching a page for the first time costs several times what copying it does.

What is written over and over is kept, and what is handed out lies in slabs, for which the system is asked to take pages
of two megabytes where it has them. Such a tensor is like any other, but that its storage cannot be resized, like one
that numpy made.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Final

import torch
from torch import Tensor

SLAB: Final = 1 << 24
"""Bytes that are asked for at once."""

LARGE: Final = SLAB // 4
"""Bytes from which on a tensor has a slab of its own."""

ALIGNMENT: Final = 64
"""Bytes at whose multiples tensors begin."""

Empty = Callable[[Sequence[int], Tensor], Tensor]
"""Makes a tensor of some shape, of the type and in the place of a given one, with anything in it."""


def separate(shape: Sequence[int], like: Tensor) -> Tensor:
    """A tensor in memory of its own."""
    size = prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < LARGE:
        return like.new_empty(tuple(shape))
    return _slab(size).view(like.dtype).view(tuple(shape))


class Slabs:
    """Memory for many tensors that stay together, like those of one model. Each has a storage of its own."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._used = SLAB

    def empty(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of some shape, of the type and in the place of a given one, with anything in it."""
        size = prod(shape) * like.element_size()
        if like.device.type != "cpu" or not 0 < size < LARGE:
            return separate(shape, like)
        if self._used + size > SLAB:
            self._memory, self._used = _pages(SLAB), 0
        if self._memory is None:
            return separate(shape, like)
        start = self._used
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return torch.frombuffer(self._memory, dtype=like.dtype, count=prod(shape), offset=start).view(tuple(shape))


_kept = threading.local()


def scratch(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory to compute in. On the host a thread gets the same every time: one call at a time has the use of it."""
    size = prod(shape) * dtype.itemsize
    if device.type != "cpu":
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    kept: Tensor | None = getattr(_kept, "bytes", None)
    if kept is None or kept.numel() < size:
        kept = _kept.bytes = _slab(size)
    return kept[:size].view(dtype).view(tuple(shape))


def _slab(size: int) -> Tensor:
    """So many bytes."""
    memory = _pages(size) if size else None
    return torch.empty(size, dtype=torch.uint8) if memory is None else torch.frombuffer(memory, dtype=torch.uint8)


def _pages(size: int) -> mmap.mmap | None:
    """Fresh pages, large ones where the system has them; None where it cannot be asked.

    They are no part of the heap, where whoever comes later would find large pages by chance.
    """
    if sys.platform != "linux":
        return None
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
