"""What the rows and columns of a weight become: the plan, spread over segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from canon.attacks.plan import AttackPlan
from canon.graph import Segment


@dataclass(frozen=True, eq=False)
class Axis:
    """The rows or the columns of one weight after the attack."""

    before: int
    """Entries before."""

    filters: int
    """Filters that its entries may have, counted over the whole axis."""

    source: Tensor
    """The entry before that each entry copies, or models itself on."""

    kind: Tensor
    """`Kind` of each entry."""

    share: Tensor
    """Share in its source, 0 for dummies."""

    gain: Tensor
    """Camouflage scale."""

    filter: Tensor
    """Dummies with one number share a filter."""

    following: Tensor
    """The next entry in the ring of a clique."""

    @property
    def after(self) -> int:
        """Entries after."""
        return self.source.numel()

    def block(self, index: int, count: int) -> Axis:
        """One of `count` equal blocks, in coordinates of its own."""
        if count == 1:
            return self
        size, old = self.after // count, self.before // count
        part = slice(index * size, (index + 1) * size)
        return Axis(
            before=old,
            filters=self.filters,
            source=self.source[part] - index * old,
            kind=self.kind[part],
            share=self.share[part],
            gain=self.gain[part],
            filter=self.filter[part],
            following=self.following[part] - index * size,
        )

    @staticmethod
    def plain(length: int) -> Axis:
        """An axis that stays."""
        index = torch.arange(length)
        ones = torch.ones(length, dtype=torch.float64)
        return Axis(length, length, index, torch.zeros_like(index), ones, ones, index, index)

    @staticmethod
    def join(parts: Sequence[Axis]) -> Axis:
        """Axes side by side."""
        if len(parts) == 1:
            return parts[0]
        lengths = torch.tensor([part.after for part in parts])

        def begin(sizes: list[int]) -> Tensor:
            ends = torch.tensor(sizes).cumsum(0)
            return (ends - torch.tensor(sizes)).repeat_interleave(lengths)

        return Axis(
            before=sum(part.before for part in parts),
            filters=sum(part.filters for part in parts),
            source=torch.cat([part.source for part in parts]) + begin([part.before for part in parts]),
            kind=torch.cat([part.kind for part in parts]),
            share=torch.cat([part.share for part in parts]),
            gain=torch.cat([part.gain for part in parts]),
            filter=torch.cat([part.filter for part in parts]) + begin([part.filters for part in parts]),
            following=torch.cat([part.following for part in parts]) + begin([part.after for part in parts]),
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
        repeat = segment.repeat
        inner = torch.arange(repeat)

        def lift(index: Tensor) -> Tensor:
            return index if repeat == 1 else (index[:, None] * repeat + inner).flatten()

        def spread(values: Tensor) -> Tensor:
            return values if repeat == 1 else values.repeat_interleave(repeat)

        gain = planned.gains.get(segment.tap)
        return Axis(
            before=segment.length,
            filters=planned.filters * repeat,
            source=lift(planned.model),
            kind=spread(planned.kind),
            share=spread(planned.share),
            gain=spread(torch.ones(planned.after, dtype=torch.float64) if gain is None else gain),
            filter=lift(planned.filter),
            following=lift(planned.following),
        )
