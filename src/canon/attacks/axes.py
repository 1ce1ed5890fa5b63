"""What the rows and columns of a weight become: the plan, spread over segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from canon.attacks.channels import Kind
from canon.attacks.plan import AttackPlan
from canon.graph import Segment


@dataclass(frozen=True, eq=False)
class Axis:
    """The rows or the columns of one weight after the attack."""

    before: int
    """Entries before."""

    filters: int
    """Filters that its entries may have, counted over the whole axis."""

    places: Tensor
    """Whole numbers of each entry, `[4, after]`: source, filter, following, kind."""

    factors: Tensor
    """Real numbers of each entry, `[2, after]`: share, gain."""

    @property
    def after(self) -> int:
        """Entries after."""
        return self.places.shape[1]

    @property
    def source(self) -> Tensor:
        """The entry before that each entry copies, or models itself on."""
        return self.places[0]

    @property
    def filter(self) -> Tensor:
        """Dummies with one number share a filter."""
        return self.places[1]

    @property
    def following(self) -> Tensor:
        """The next entry in the ring of a clique."""
        return self.places[2]

    @property
    def kind(self) -> Tensor:
        """`Kind` of each entry."""
        return self.places[3]

    @property
    def share(self) -> Tensor:
        """Share in its source, 0 for dummies."""
        return self.factors[0]

    @property
    def gain(self) -> Tensor:
        """Camouflage scale."""
        return self.factors[1]

    @cached_property
    def counts(self) -> list[int]:
        """How many entries of every `Kind` there are."""
        found: list[int] = torch.bincount(self.kind, minlength=len(Kind)).tolist()
        return found

    def block(self, index: int, count: int) -> Axis:
        """One of `count` equal blocks, in coordinates of its own."""
        if count == 1:
            return self
        size, old = self.after // count, self.before // count
        part = slice(index * size, (index + 1) * size)
        begin = torch.tensor([index * old, 0, index * size, 0])
        return Axis(old, self.filters, self.places[:, part] - begin[:, None], self.factors[:, part])

    @staticmethod
    def plain(length: int) -> Axis:
        """An axis that stays."""
        index = torch.arange(length)
        places = torch.stack([index, index, index, torch.zeros_like(index)])
        return Axis(length, length, places, torch.ones(2, length, dtype=torch.float64))

    @staticmethod
    def join(parts: Sequence[Axis]) -> Axis:
        """Axes side by side."""
        if len(parts) == 1:
            return parts[0]
        begins, begin = [], (0, 0, 0, 0)
        for part in parts:
            begins.append(begin)
            begin = (begin[0] + part.before, begin[1] + part.filters, begin[2] + part.after, 0)
        lengths = torch.tensor([part.after for part in parts])
        return Axis(
            before=begin[0],
            filters=begin[1],
            places=torch.cat([part.places for part in parts], 1)
            + torch.tensor(begins).T.repeat_interleave(lengths, 1, output_size=begin[2]),
            factors=torch.cat([part.factors for part in parts], 1),
        )


class Axes:
    """Makes axes from segments, each stretch once: in a dense network every layer reads all that came before it."""

    def __init__(self, plan: AttackPlan) -> None:
        self.plan = plan
        self._known: dict[tuple[int, int, int], Axis] = {}

    def of(self, segments: tuple[Segment, ...]) -> Axis:
        """The axis that these segments make up."""
        return Axis.join([self._stretch(segment) for segment in segments])

    def _stretch(self, segment: Segment) -> Axis:
        key = (segment.space, segment.repeat, segment.tap)
        if key not in self._known:
            self._known[key] = self._make(segment)
        return self._known[key]

    def _make(self, segment: Segment) -> Axis:
        planned = self.plan.spaces.get(segment.space)
        if planned is None:
            return Axis.plain(segment.length)
        index = [planned.model, planned.filter, planned.following]
        gain = planned.gains.get(segment.tap)
        factors = torch.stack([planned.share, torch.ones_like(planned.share) if gain is None else gain])
        repeat = segment.repeat
        if repeat == 1:
            return Axis(segment.length, planned.filters, torch.stack([*index, planned.kind]), factors)
        lifted = (torch.stack(index)[..., None] * repeat + torch.arange(repeat)).flatten(1)
        return Axis(
            before=segment.length,
            filters=planned.filters * repeat,
            places=torch.cat([lifted, planned.kind.repeat_interleave(repeat)[None]]),
            factors=factors.repeat_interleave(repeat, 1),
        )
