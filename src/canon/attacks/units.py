"""Units: what the incoming filters of channels are made of, as far as symbols can say it.

A plain unit has the filter that its kind asks for: the original's own, zeros, or noise. Any other is a sum: so much of
the original's own filter, and so much of some filters of noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PARTS = torch.tensor(
    [[-1.0, 0.5, -0.5, 0.5, -0.5], [0.0, 1.0, -1.0, -1.0, 1.0], [1.0, 1.0, -1.0, 1.0, -1.0]], dtype=torch.float64
)
"""Five units that give one channel: how much of its filter, how much noise, and the weight of each."""


@dataclass(frozen=True, eq=False)
class Units:
    """A table with one line per unit, and the noise in their filters."""

    own: Tensor
    """How much of the original's filter it has; 1 for plain units."""

    shift: Tensor
    """How much of the original's biases it has, wherever the channel is still a linear function of its filter."""

    weight: Tensor
    """How strongly live channels read it, relative to the original or the group that it belongs to."""

    noise: Tensor
    """Filters of noise that add to a unit: `[2, n]`, unit and number of the filter."""

    amount: Tensor
    """How much of each, `[n]`."""

    @property
    def count(self) -> int:
        """How many there are."""
        return self.own.numel()

    @staticmethod
    def plain(weight: Tensor) -> Units:
        """Plain units of these weights."""
        weight = weight.double().flatten()
        one = torch.ones_like(weight)
        return Units(one, one, weight, torch.empty((2, 0), dtype=torch.int64), torch.empty(0, dtype=torch.float64))

    def and_plain(self, weight: Tensor) -> Units:
        """These and plain ones of these weights."""
        return self._and(Units.plain(weight))

    def and_odd(self, relation: Tensor, filters: Tensor) -> Units:
        """These and, for each block, `a₁ … aₚ, b, −a₁ … −aₚ, −b` with `b = Σ cⱼ·aⱼ`; both arguments are `[G, p]`."""
        blocks, pairs = relation.shape
        relation = relation.double()
        ones = torch.ones_like(relation)
        half = torch.cat([ones, relation.sum(1, keepdim=True)], 1)
        weight = torch.cat([relation, -ones[:, :1]], 1)
        unit = torch.arange(2 * blocks * (pairs + 1)).view(blocks, 2, pairs + 1)
        sign = torch.tensor([1.0, -1.0], dtype=torch.float64)[None, :, None]
        # Each of the first p has one filter; the last has all of them.
        single, last = unit[..., :-1], unit[..., -1:].expand(-1, -1, pairs)
        number = filters[:, None].expand_as(single)
        noise = torch.stack([torch.stack([single, last]).flatten(), torch.stack([number, number]).flatten()])
        amount = torch.stack([(ones[:, None] * sign), (relation[:, None] * sign)]).flatten()
        shift = (half[:, None] * sign).flatten()
        return self._and(Units(torch.zeros_like(shift), shift, (weight[:, None] * sign).flatten(), noise, amount))

    def and_parts(self, filters: Tensor) -> Units:
        """These and, for each filter of noise, the five that give one channel."""
        count = filters.numel()
        own, amount, weight = (row.repeat(count) for row in PARTS)
        noise = torch.stack([torch.arange(5 * count), filters.flatten().repeat_interleave(5)])
        used = amount != 0
        return self._and(Units(own, own, weight, noise[:, used], amount[used]))

    def _and(self, more: Units) -> Units:
        begin = torch.tensor([[self.count], [0]])
        return Units(
            torch.cat([self.own, more.own]),
            torch.cat([self.shift, more.shift]),
            torch.cat([self.weight, more.weight]),
            torch.cat([self.noise, more.noise + begin], 1),
            torch.cat([self.amount, more.amount]),
        )
