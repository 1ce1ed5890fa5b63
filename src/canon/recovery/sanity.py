"""Do two models compute the same? Run both on the same inputs and compare outputs, never decisions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from canon.graph.values import leaves
from canon.graph.widening import runner

VECTORS = 8
"""Inputs to compare on where an input is a vector. An image is enough: it shows a channel at many positions."""


def agreement(first: nn.Module, second: nn.Module, example: Any) -> tuple[float, float]:
    """Largest difference between the outputs, and the largest output, on random inputs like the example."""
    inputs = example if isinstance(example, tuple) else (example,)
    generator = torch.Generator().manual_seed(0)
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in first.parameters())
    device = next((p.device for p in first.parameters()), torch.device("cpu"))

    def outputs(count: int | None) -> list[list[Tensor]]:
        given = [_like(x, count, generator, device, half) if isinstance(x, Tensor) else x for x in inputs]
        models = [runner(model) if half else model for model in (first, second)]
        return [[x for x in leaves(model(*given)) if isinstance(x, Tensor)] for model in models]

    count = _count([x for x in inputs if isinstance(x, Tensor)])
    with torch.no_grad(), _full_precision():
        try:
            a, b = outputs(count)
        except RuntimeError:  # a program that takes as many inputs as the example has, and no others
            a, b = outputs(None)
    difference = max(float((x.double() - y.double()).abs().max()) for x, y in zip(a, b, strict=True))
    size = max(float(x.double().abs().max()) for x in a)
    return difference, size


@contextmanager
def _full_precision() -> Iterator[None]:
    """On CUDA float32 products may be computed with ten bits (TF32), which would drown what is to be seen."""
    if not torch.cuda.is_available():
        yield
        return
    backends: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = False
        yield
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed


def _count(inputs: list[Tensor]) -> int | None:
    """How many inputs to compare on; None: as many as the example has, since integers and states are."""
    if len(inputs) > 1 or not all(x.is_floating_point() for x in inputs):
        return None
    return 1 if any(x.ndim > 2 for x in inputs) else VECTORS


def _like(x: Tensor, count: int | None, generator: torch.Generator, device: torch.device, half: bool) -> Tensor:
    if not x.is_floating_point():
        return x.to(device)
    shape = tuple(x.shape) if count is None or x.ndim < 2 else (count, *x.shape[1:])
    dtype = torch.float32 if half else x.dtype
    return torch.randn(shape, generator=generator, dtype=dtype).to(device)
