"""Tensors whose numbers lie in files that are mapped into memory: of models that are larger than memory should be.

What is made from such tensors goes into such files as well, temporary ones without a name, so that it takes no memory
that the system cannot take back. Nobody writes to a mapped tensor that is part of a model, so models may share them.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from canon._memory import Empty, Slabs
from canon.graph.tensors import StoredTensors

LARGE: Final = 1 << 20
"""Bytes from which on a result gets a file of its own."""

_ranges: list[tuple[int, int]] = []
"""Addresses of mapped files: first, and behind the last."""


def note(pages: mmap.mmap) -> None:
    """From now on, tensors in these pages are known to lie in a file."""
    first = torch.frombuffer(pages, dtype=torch.uint8).data_ptr()
    place = (first, first + len(pages))
    insort(_ranges, place)
    weakref.finalize(pages, _forget, place)


def _forget(place: tuple[int, int]) -> None:
    if place in _ranges:
        _ranges.remove(place)


def is_mapped(tensor: Tensor) -> bool:
    """Whether a tensor's numbers lie in a mapped file."""
    if not _ranges or tensor.device.type != "cpu" or not tensor.numel():
        return False
    address = tensor.data_ptr()
    index = bisect_right(_ranges, (address, 1 << 64)) - 1
    return index >= 0 and _ranges[index][0] <= address < _ranges[index][1]


def on_disk(shape: Sequence[int], like: Tensor) -> Tensor:
    """A tensor of zeros in a temporary file."""
    size = prod(shape) * like.element_size()
    if size < LARGE:
        return like.new_empty(tuple(shape))
    with tempfile.TemporaryFile(prefix=".canon-") as file:
        os.truncate(file.fileno(), size)
        pages = mmap.mmap(file.fileno(), size)
    note(pages)
    return torch.frombuffer(pages, dtype=like.dtype).view(tuple(shape))


def room_like(tensors: Iterable[Tensor]) -> Empty:
    """Memory for what is made from some tensors: where they lie in files, so will it."""
    return on_disk if any(map(is_mapped, tensors)) else Slabs().empty


def results(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A dict for what is made from some tensors: where they lie in files, what is put into it goes there too."""
    if isinstance(tensors, StoredTensors) or any(map(is_mapped, tensors.values())):
        return _OnDisk()
    return {}


class _OnDisk(dict[str, Tensor]):
    def __setitem__(self, name: str, tensor: Tensor) -> None:
        super().__setitem__(name, put_away(tensor))


def keeper(tensors: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """What to keep something of some tensors with: where they lie in files, so will it."""
    return put_away if any(map(is_mapped, tensors.values())) else _as_it_is


def put_away(tensor: Tensor) -> Tensor:
    """The same numbers in a temporary file, if there are many."""
    if is_mapped(tensor) or tensor.numel() * tensor.element_size() < LARGE or tensor.device.type != "cpu":
        return tensor
    data = tensor.detach().contiguous()
    with tempfile.TemporaryFile(prefix=".canon-", buffering=0) as file:
        raw: Any = data.view(-1).view(torch.uint8).numpy()
        left = memoryview(raw)
        while len(left):  # the system takes two gigabytes at a time
            left = left[file.write(left) :]
        pages = mmap.mmap(file.fileno(), data.numel() * data.element_size())
    note(pages)
    return torch.frombuffer(pages, dtype=data.dtype).view(data.shape)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def duplicate(tensor: Tensor) -> Tensor:
    """The same numbers for another model: a copy, or the tensor itself where it lies in a file."""
    return tensor.detach() if is_mapped(tensor) else tensor.detach().clone()
