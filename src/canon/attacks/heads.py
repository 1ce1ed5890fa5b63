"""turned_heads: attention heads in another order, their values, keys and queries in other bases."""

from __future__ import annotations

from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor, nn

from canon.attacks.prepared import Prepared
from canon.graph.heads import Attention, attention_layers
from canon.rewrite.heads import Turn, turn_heads

STRETCH: Final = 2.0
"""No direction is made longer or shorter than by this factor, so that little is lost to rounding."""


@final
class TurnedHeads(Prepared):
    """Every attention that is understood is turned: `W_V ← A·W_V`, `W_O ← W_O·A⁻¹`, `W_K ← B·W_K`, `W_Q ← B⁻ᵀ·W_Q`.

    `B` is anything where positions do not act on queries and keys, one complex number for each pair of entries that
    positions turn, and 1 where neither is so.
    """

    name: ClassVar[str] = "turned_heads"

    def change(self, model: nn.Module, example: Any, ratio: float, generator: torch.Generator) -> nn.Module | None:
        """Turn all heads."""
        turns = {one: _drawn(one, generator) for one in attention_layers(model, example)}
        return turn_heads(model, turns) if turns else None


def _drawn(attention: Attention, generator: torch.Generator) -> Turn:
    count, size = attention.groups, attention.heads // attention.groups
    heads = torch.arange(attention.heads)
    if attention.movable:
        within = torch.stack([torch.randperm(size, generator=generator) for _ in range(count)])
        heads = (torch.randperm(count, generator=generator)[:, None] * size + within).flatten()
    width = attention.key.index.shape[1]
    values = torch.stack([_any(attention.value.index.shape[1], generator) for _ in range(count)])
    keys = torch.eye(width, dtype=torch.float64).repeat(count, 1, 1)
    for one in keys:
        if len(attention.loose):
            one[attention.loose[:, None], attention.loose] = _any(len(attention.loose), generator)
        for pair in attention.pairs:
            one[pair[:, None], pair] = _complex(generator)
    return Turn(heads, values, keys)


def _any(width: int, generator: torch.Generator) -> Tensor:
    """Some invertible map."""
    left, right = (torch.linalg.qr(_normal(width, width, generator=generator)).Q for _ in range(2))
    scales = STRETCH ** (2 * torch.rand(width, generator=generator, dtype=torch.float64) - 1)
    found: Tensor = left @ (scales[:, None] * right)
    return found


def _complex(generator: torch.Generator) -> Tensor:
    """A complex number as a matrix."""
    angle, size = torch.rand(2, generator=generator, dtype=torch.float64) * torch.tensor([2 * torch.pi, 1.0])
    real, imaginary = STRETCH ** (2 * size - 1) * torch.stack([angle.cos(), angle.sin()])
    return torch.stack([torch.stack([real, -imaginary]), torch.stack([imaginary, real])])


def _normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)
