"""Probes: inputs like the example, and how far two models differ on them."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.errors import AttackError
from canon.graph.probes import drawn_whole
from canon.graph.values import leaves
from canon.graph.widening import cast, runner

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
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()):
        model = runner(model)
        given = cast(given, model)
    found = [x.double().flatten() for x in leaves(model(*given)) if isinstance(x, Tensor) and x.is_floating_point()]
    if not found:
        raise AttackError("the model gives no numbers that could be compared")
    return torch.cat(found)
