"""How alike two channels are: one cosine over everything that is known of them.

A channel is known by directions (its rows in each layer that makes it, its depthwise kernel) and by single numbers
(ratios of sizes, offsets). Each direction counts by its effective dimension: rows that vary in few ways tell less.
Single numbers are put on a circle, so that one of them can never outweigh the rest, and are counted from their mean, so
that what all channels share says nothing. What counts how much depends on the owner's channels alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from canon.verify.layout import Step
from canon.verify.side import Part

CHUNK: Final = 512
"""Suspect's channels compared at a time."""

SINGLES: Final = 0.5
"""Single numbers together count at most this much of what directions count."""


@dataclass(frozen=True, eq=False)
class Yardstick:
    """The owner's channels of one step, ready to be compared with."""

    parts: tuple[Part, ...]
    weights: tuple[Tensor, ...]
    """By part: the weight of each block."""

    centre: Tensor
    """Mean of the single numbers on their circles."""

    owner: Tensor
    """`channels x numbers`, float32, every row of length 1, or 0 where nothing is known."""

    still: Tensor
    """Whether each channel has no direction at all: nothing that changes ever enters it."""

    singles: Tensor
    """The owner's single numbers on their circles."""

    directions: tuple[Tensor, ...]
    """By part that has any: the owner's directions, `blocks x channels x numbers`."""

    @staticmethod
    def of(step: Step, keep: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Yardstick:
        """Made from what the owner's step says; what is large is kept with `keep`."""
        directions, singles = _split(step.features, step.parts)
        weights = tuple(_dimensions(block) for block in directions)
        total = float(sum(float(weight.sum()) for weight in weights))
        centre = singles.mean(dim=0)
        spread = float((singles - centre).square().sum(dim=1).mean()) if singles.numel() else 0.0
        if total and spread > SINGLES * total:
            weights = tuple(weight * (spread / (SINGLES * total)) for weight in weights)
        owner = keep(_combined(directions, singles, weights, centre))
        still = _still(directions, singles)
        return Yardstick(step.parts, weights, centre, owner, still, singles, tuple(directions))

    @property
    def columns(self) -> int:
        """How many of the owner's numbers are directions; single numbers follow."""
        return sum(part.columns for part in self.parts if part.numbers > 1)

    def measure(self, features: Tensor, *, flipped: bool = False) -> Tensor:
        """The same of a suspect's channels; `flipped`: as if each had the other sign."""
        directions, singles = _split(features, self.parts, -1.0 if flipped else 1.0)
        return _combined(directions, singles, self.weights, self.centre)

    def nearest(self, features: Tensor) -> Tensor:
        """The cosine of each of some of a suspect's channels to the owner's channel that it is most like."""
        return torch.cat([(part @ self.owner.T).amax(dim=1) for part in self.measure(features).split(CHUNK)])

    def with_signs(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """How alike some of a suspect's channels are to the owner's by directions: as they stand, and at best, with the
        sign of every direction turned as it suits; two matrices, `suspect's x owner's`."""
        plain = turned = features.new_zeros(features.shape[0], self.owner.shape[0], dtype=torch.float32)
        known = torch.zeros(self.owner.shape[0])
        for theirs, ours, weights in zip(_split(features, self.parts)[0], self.directions, self.weights, strict=True):
            for mine, yours, weight in zip(theirs, ours, weights, strict=True):
                yours = torch.nn.functional.normalize(yours, dim=1).float()
                cosine = float(weight) * (torch.nn.functional.normalize(mine, dim=1).float() @ yours.T)
                plain, turned = plain + cosine, turned + cosine.abs()
                known += float(weight) * yours.any(dim=1)
        known = known.clamp(min=1e-30)
        return plain / known, turned / known

    def as_owner(self, features: Tensor, owner: Tensor) -> Tensor:
        """Features of mirror images, with the sign of every direction as the owner's channels have it."""
        found, start, directions = features.clone(), 0, iter(self.directions)
        for part in self.parts:
            if part.numbers > 1:
                mine = found[:, start : start + part.columns].unflatten(1, (part.blocks, part.numbers))
                turned = (mine * next(directions)[:, owner].transpose(0, 1)).sum(dim=2, keepdim=True) < 0
                mine *= torch.where(turned, -1.0, 1.0)
            start += part.columns
        return found

    def stillness(self, features: Tensor) -> Tensor:
        """Which of a suspect's channels have no direction at all."""
        known = torch.tensor([part.numbers > 1 for part in self.parts for _ in range(part.columns)], dtype=torch.bool)
        return ~features[:, known].any(dim=1)

    def singles_of(self, features: Tensor) -> Tensor:
        """The single numbers of some of a suspect's channels, on their circles."""
        return _split(features, self.parts)[1]

    @cached_property
    def dimension(self) -> float:
        """In how many ways the owner's channels differ: `1 / mean cos²` over pairs, as for random vectors."""
        return float(_dimensions(self.owner[None])[0])


def _split(features: Tensor, parts: tuple[Part, ...], sign: float = 1.0) -> tuple[list[Tensor], Tensor]:
    """Directions, `blocks x channels x numbers` by part, and single numbers as points on circles."""
    directions, singles, start = [], [features.new_zeros(features.shape[0], 0)], 0
    for part in parts:
        columns = features[:, start : start + part.columns]
        start += part.columns
        factor = 1.0 if part.exact and part.numbers == 1 else sign
        if part.numbers > 1:
            blocks = columns.view(-1, part.blocks, part.numbers).transpose(0, 1)
            if not part.exact:
                blocks = blocks / (1 + torch.linalg.vector_norm(blocks, dim=2, keepdim=True))
            directions.append(blocks if factor == 1 else factor * blocks)  # a key's may lie in a file, and stay there
        else:
            singles += [torch.cos(columns), torch.sin(factor * columns)]
    return directions, torch.cat(singles, dim=1)


def _still(directions: list[Tensor], singles: Tensor) -> Tensor:
    still = torch.ones(singles.shape[0], dtype=torch.bool)
    for block in directions:
        still &= ~block.any(dim=0).any(dim=1)
    return still


def _dimensions(blocks: Tensor) -> Tensor:
    """Effective dimension of each of `blocks x channels x numbers`: 1 / mean cos² over pairs of channels."""
    count, numbers = blocks.shape[1], blocks.shape[2]
    unit = torch.nn.functional.normalize(blocks, dim=2).float()
    used = unit.square().sum(dim=(1, 2)).double()
    # Squares of all products of rows, or of columns: the sum is the same.
    products = unit @ unit.transpose(1, 2) if count < numbers else unit.transpose(1, 2) @ unit
    squares = products.square().sum(dim=(1, 2)).double()
    pairs = used * (used - 1)
    mean = torch.where(pairs > 0, (squares - used) / pairs.clamp(min=1), 1 / numbers)
    return torch.where(used > 0, 1 / mean.clamp(min=1 / numbers, max=1.0), 0.0) if count else used


def _combined(directions: list[Tensor], singles: Tensor, weights: tuple[Tensor, ...], centre: Tensor) -> Tensor:
    found = [
        (blocks * weight.sqrt()[:, None, None]).transpose(0, 1).flatten(1)
        for blocks, weight in zip(directions, weights, strict=True)
    ]
    whole = torch.cat([*found, singles - centre], dim=1)
    return torch.nn.functional.normalize(whole, dim=1).float()
