"""Blends: filters that are sums, so much of a row before and so much of some filters of noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from canon.attacks.channels import Channels
from canon.transforms import entries


@dataclass(frozen=True, eq=False)
class Blend:
    """What the rows of one axis are made of."""

    own: Tensor
    """How much of what stands there without the blend; 1 for all rows that are plain."""

    shift: Tensor
    """How much of the model channel's biases."""

    noise: Tensor
    """Filters of noise that add to a row: `[2, n]`, row and number of the filter."""

    amount: Tensor
    """How much of each, `[n]`."""

    @staticmethod
    def of(channels: Channels) -> Blend | None:
        """For the channels of a space; None: all are plain."""
        units, unit = channels.units, channels.unit.flatten()
        if not units.amount.numel():
            return None
        order = torch.argsort(units.noise[0], stable=True)
        counts = torch.bincount(units.noise[0], minlength=units.count)
        begins = counts.cumsum(0) - counts
        # Every channel takes the noise of its unit.
        many = counts[unit]
        rows = torch.arange(unit.numel()).repeat_interleave(many)
        within = torch.arange(rows.numel()) - (many.cumsum(0) - many).repeat_interleave(many)
        picked = order[begins[unit].repeat_interleave(many) + within]
        filters = units.noise[1, picked] + unit.numel()
        return Blend(units.own[unit], units.shift[unit], torch.stack([rows, filters]), units.amount[picked])

    @staticmethod
    def plain(length: int) -> Blend:
        """Rows that are what they are."""
        one = torch.ones(length, dtype=torch.float64)
        return Blend(one, one, torch.empty((2, 0), dtype=torch.int64), torch.empty(0, dtype=torch.float64))

    def repeat(self, times: int) -> Blend:
        """Every row so many times, each with noise of its own."""
        if times == 1:
            return self
        noise = entries(self.noise, times)
        own, shift, amount = (t.repeat_interleave(times) for t in (self.own, self.shift, self.amount))
        return Blend(own, shift, noise, amount)

    @staticmethod
    def join(parts: Sequence[Blend], filters: Sequence[int]) -> Blend:
        """Blends side by side, whose filters are counted from these numbers up."""
        begins = torch.tensor([0, *(part.own.numel() for part in parts)]).cumsum(0)
        return Blend(
            torch.cat([part.own for part in parts]),
            torch.cat([part.shift for part in parts]),
            torch.cat(
                [p.noise + torch.tensor([[int(b)], [f]]) for p, b, f in zip(parts, begins[:-1], filters, strict=True)],
                1,
            ),
            torch.cat([part.amount for part in parts]),
        )

    def block(self, index: int, count: int) -> Blend:
        """One of `count` equal blocks, in coordinates of its own."""
        if count == 1:
            return self
        size = self.own.numel() // count
        begin = index * size
        inside = (self.noise[0] >= begin) & (self.noise[0] < begin + size)
        noise = self.noise[:, inside] - torch.tensor([[begin], [0]])
        part = slice(begin, begin + size)
        return Blend(self.own[part], self.shift[part], noise, self.amount[inside])
