"""Probes: inputs like the example, and how far two models differ on them."""

from __future__ import annotations

import copy
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.errors import AttackError
from canon.graph.probes import drawn_whole

Inputs = tuple[Any, ...]
"""The arguments of one forward pass."""

ROUNDS: Final = 4
"""Random inputs beside the example, each as large as it."""


def probes_like(example: Any, seed: int) -> list[Inputs]:
    """The example, and random inputs of its shapes; token numbers lie between the example's smallest and largest."""
    given: Inputs = example if isinstance(example, tuple) else (example,)
    generator = torch.Generator().manual_seed(seed)
    return [given, *(tuple(_like(x, generator) for x in given) for _ in range(ROUNDS))]


def _like(x: Any, generator: torch.Generator) -> Any:
    if not isinstance(x, Tensor) or x.dtype == torch.bool or not x.numel():
        return x
    if not x.is_floating_point():
        return drawn_whole(x, tuple(x.shape), generator)
    return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)


@torch.no_grad()
def difference(first: nn.Module, second: nn.Module, probes: list[Inputs]) -> float:
    """The largest difference between outputs, relative to the largest output of the first model."""
    pairs = [(_outputs(first, given), _outputs(second, given)) for given in probes]
    size = max(float(before.abs().max()) for before, _ in pairs)
    apart = max(float((before - after).abs().max()) for before, after in pairs)
    return apart / size if size > 0 else float("inf") if apart > 0 else 0.0


def _outputs(model: nn.Module, given: Inputs) -> Tensor:
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    if half:
        # Half precision is for storage: its own rounding would drown what is to be seen.
        model = copy.deepcopy(model).float()
        given = tuple(x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in given)
    found = [tensor.double().flatten() for tensor in _tensors(model(*given))]
    if not found:
        raise AttackError("the model gives no numbers that could be compared")
    return torch.cat(found)


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else []
    return [tensor for part in parts for tensor in _tensors(part)]
