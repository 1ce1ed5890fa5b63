"""Kernels that grow or lose entries at their ends, and the padding that goes with them.

A layer's padding, dilation and mode stand in the module. Entries of zeros at both ends of an axis go together with the
padding that made room for them: as many on either side for padding given as numbers, whatever the mode is; under `same`
also on one side alone, where that leaves the padding before the kernel as it must be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from canon._memory import Empty, separate

Ends = tuple[int, int]
"""How many entries go at the beginning and at the end of an axis; below zero, how many come."""


@dataclass(frozen=True)
class Kernel:
    """How a convolution lays its kernel over an image."""

    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]

    @staticmethod
    def of(layer: Any) -> Kernel:
        """As a layer says."""
        return Kernel(layer.padding, tuple(layer.dilation))

    @property
    def is_padded(self) -> bool:
        """Whether there is padding at all: without any, no kernel becomes smaller."""
        return self.padding == "same" if isinstance(self.padding, str) else any(self.padding)

    def removable(self, used: Tensor) -> tuple[Ends, ...]:
        """What can go of a kernel, axis by axis, given the places that some filter uses; empty: nothing."""
        ends = tuple(self._fitting(axis, used.shape[axis], *_unused(used, axis)) for axis in range(used.ndim))
        return ends if any(any(pair) for pair in ends) else ()

    def _fitting(self, axis: int, size: int, first: int, last: int) -> Ends:
        step = self.dilation[axis]
        if not isinstance(self.padding, str):
            both = min(first, last, self.padding[axis] // step)
            return both, both
        if self.padding != "same":
            return 0, 0
        before = step * (size - 1) // 2
        pairs = [(a, b) for a in range(first + 1) for b in range(last + 1)]
        return max((p for p in pairs if step * (size - sum(p) - 1) // 2 == before - p[0] * step), key=sum)

    def without(self, ends: Sequence[Ends]) -> Kernel:
        """The same layer with another kernel: padding given as numbers follows, `same` follows by itself."""
        if self.padding == "same":
            return self
        padding = (0,) * len(ends) if isinstance(self.padding, str) else self.padding
        steps = zip(padding, ends, self.dilation, strict=True)
        return Kernel(tuple(pad - first * step for pad, (first, _), step in steps), self.dilation)

    def settle(self, layer: Any) -> None:
        """Make the attributes of a layer that has its weight agree with it; the layer is changed."""
        layer.kernel_size, layer.padding = tuple(layer.weight.shape[2:]), self.padding
        # Kept by torch for padding modes other than zeros: both sides of every axis, the last axis first.
        sides = []
        for axis, size in enumerate(layer.kernel_size):
            if isinstance(self.padding, str):
                total = self.dilation[axis] * (size - 1) if self.padding == "same" else 0
                sides.append((total // 2, total - total // 2))
            else:
                sides.append((self.padding[axis],) * 2)
        kept = [number for pair in reversed(sides) for number in pair]
        layer._reversed_padding_repeated_twice = kept if isinstance(self.padding, str) else tuple(kept)


def _unused(used: Tensor, axis: int) -> Ends:
    """How many slices of a kernel's places are unused at the beginning and at the end of an axis."""
    full = used.movedim(axis, 0).flatten(1).any(dim=1).tolist() if used.ndim > 1 else used.tolist()
    return (full.index(True), full[::-1].index(True)) if any(full) else (0, 0)


def resize_kernels(model: nn.Module, rings: Mapping[str, int]) -> None:
    """After kernels grew (or, with a negative number, shrank) by rings, bring their layers' attributes up to date.

    Args:
        model: A model that the caller owns; it is changed.
        rings: By weight name, how many entries were added on every side.
    """
    for name, count in rings.items():
        layer: Any = model.get_submodule(name.rpartition(".")[0])
        Kernel.of(layer).without([(-count, -count)] * (layer.weight.ndim - 2)).settle(layer)


def inner_places(size: Sequence[int], ends: Sequence[Ends]) -> Tensor:
    """The places of a kernel without some of its ends, as numbers of the flat kernel in the smaller kernel's shape."""
    places = torch.arange(torch.Size(size).numel()).view(tuple(size))
    for axis, (first, last) in enumerate(ends):
        places = places.narrow(axis, first, size[axis] - first - last)
    return places


def cropped(weight: Tensor, ends: Sequence[Ends], empty: Empty = separate) -> Tensor:
    """A weight without the ends of its kernels, in memory of its own.

    Choosing places of flat kernels takes a fifth of what copying a view does.
    """
    size = weight.shape[2:]
    places = inner_places(size, ends)
    found = empty((weight.shape[0] * weight.shape[1], places.numel()), weight)
    torch.index_select(weight.reshape(-1, size.numel()), 1, places.flatten().to(weight.device), out=found)
    return found.view(*weight.shape[:2], *places.shape)
