"""Tensors that are views of stored numbers, as torch writes them: many may share one storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from canon._untrusted import Limits, damaged
from canon.errors import LimitError

SLACK: Final = 256 << 20
"""Bytes that views of one storage may take beyond the size of the file."""


@dataclass(frozen=True)
class View:
    """Where a tensor's numbers lie, as the file says."""

    storage: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Views:
    """Makes tensors from views. Those that are one in the file are one in memory; none reaches beyond its storage."""

    def __init__(self, numbers: Callable[[View], Tensor], file_size: int, where: str, limits: Limits) -> None:
        self._numbers, self._where, self._limits = numbers, where, limits
        self._room = file_size + SLACK
        self._storages: dict[tuple[str, torch.dtype], Tensor] = {}
        self._made: dict[View, Tensor] = {}

    def tensor(self, view: View, name: str) -> Tensor:
        """The tensor, in memory of its own or shared with equal views."""
        if view not in self._made:
            self._made[view] = self._make(view, name)
        return self._made[view]

    def _make(self, view: View, name: str) -> Tensor:
        if len(view.shape) != len(view.strides):
            raise damaged(f"the tensor '{name:.120}' has not as many strides as sizes", self._where)
        count = self._limits.check_shape(view.shape, view.dtype.itemsize, f"{self._where}: {name:.120}")
        self._room -= count * view.dtype.itemsize
        if self._room < 0:
            raise LimitError("the tensors are views that together are larger than the file", where=self._where)
        if not count:
            return torch.empty(view.shape, dtype=view.dtype)
        place = (view.storage, view.dtype)
        if place not in self._storages:
            self._storages[place] = self._numbers(view)
        flat = self._storages[place]
        last = view.offset + sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True))
        if last >= flat.numel() or count > flat.numel():
            raise damaged(f"the tensor '{name:.120}' reaches beyond its storage", self._where)
        return flat.as_strided(view.shape, view.strides, view.offset).contiguous()
