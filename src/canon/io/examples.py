"""Random inputs of the shapes that a model takes. Only their shapes and types matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from canon.errors import LimitError
from canon.graph.inputs import map_tensors
from canon.io.architecture import is_factory

DEFAULT_INPUT: Final = (3, 32, 32)
"""One input, where neither a file nor an architecture says otherwise."""


MOST_ELEMENTS: Final = 1 << 26
"""Largest input that a file may ask for."""


def example_of(model: nn.Module, architecture: str | None, size: tuple[int, ...] | None) -> tuple[Tensor, ...]:
    """Random inputs for an architecture; `size` is the shape of one of them, or the side of a square image."""
    from canon import zoo

    side = DEFAULT_INPUT[-1]
    if size is None and architecture is not None and not is_factory(architecture):
        if zoo.reads_texts(architecture):
            return (zoo.example_input(architecture),)
        side = zoo.input_size(architecture)
    shape = resized((2, DEFAULT_INPUT[0], side, side), size)
    return cast(model, (torch.randn(shape, generator=torch.Generator().manual_seed(0)),))


def program_example(model: nn.Module, size: tuple[int, ...] | None, where: str) -> tuple[Tensor, ...]:
    """Random inputs of the shapes that a program was exported with."""
    generator = torch.Generator().manual_seed(0)
    found = []
    assert isinstance(model, fx.GraphModule), "programs are read as graph modules"
    for node in model.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        if isinstance(value, Tensor):
            shape = resized([int(n) for n in value.shape], size)
            check_input(shape, where)
            drawn = torch.randn(shape, generator=generator)
            found.append(drawn.to(value.dtype) if value.is_floating_point() else torch.ones(shape, dtype=value.dtype))
    return tuple(found)


def resized(shape: Sequence[int], size: tuple[int, ...] | None) -> list[int]:
    """A shape whose last axes are as the user wants them.

    >>> resized((2, 3, 32, 32), (48,)), resized((2, 3, 32, 32), (1, 28, 28))
    ([2, 3, 48, 48], [2, 1, 28, 28])
    """
    if size is None:
        return list(shape)
    if len(size) == 1 and len(shape) > 2:
        return [*shape[:2], *size * (len(shape) - 2)]
    return [*shape[:1], *size]


def check_input(shape: Sequence[int], where: str) -> None:
    """Refuse a file whose input would fill the memory."""
    if math.prod(shape) > MOST_ELEMENTS:
        raise LimitError(
            f"the model takes an input of {math.prod(shape)} numbers, and at most {MOST_ELEMENTS} are allowed",
            where=where,
            hint="Give a smaller input with --size",
        )


def cast(model: nn.Module, example: tuple[Any, ...]) -> tuple[Any, ...]:
    """Examples in the type that the model computes in."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    found: tuple[Any, ...] = map_tensors(lambda x: x.to(dtype) if x.is_floating_point() else x, example)
    return found
