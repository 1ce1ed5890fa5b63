"""What the rows and columns of a weight become: the plan, spread over segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from canon.attacks.blend import Blend
from canon.attacks.channels import Kind
from canon.attacks.plan import AttackPlan, SpacePlan
from canon.graph import LinearMap, Segment
from canon.rewrite.axes import repeated
from canon.transforms import entries


@dataclass(frozen=True, eq=False)
class Axis:
    """The rows or the columns of one weight after the attack."""

    before: int
    """Entries before."""

    filters: int
    """Filters that its entries may have, counted over the whole axis."""

    places: Tensor
    """Whole numbers of each entry, `[3, after]`: source, filter, kind."""

    share: Tensor
    """How strongly live rows read each entry, relative to its source or its group; mostly 0 for dummies."""

    gain: Tensor
    """Camouflage scale."""

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
    def kind(self) -> Tensor:
        """`Kind` of each entry."""
        return self.places[2]

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
        begin = torch.tensor([index * old, 0, 0])
        return Axis(old, self.filters, self.places[:, part] - begin[:, None], self.share[part], self.gain[part])

    @staticmethod
    def plain(length: int) -> Axis:
        """An axis that stays."""
        index = torch.arange(length)
        ones = torch.ones(length, dtype=torch.float64)
        return Axis(length, length, torch.stack([index, index, torch.zeros_like(index)]), ones, ones)

    @staticmethod
    def join(parts: Sequence[Axis]) -> Axis:
        """Axes side by side."""
        if len(parts) == 1:
            return parts[0]
        begins, before, filters = [], 0, 0
        for part in parts:
            begins.append((before, filters, 0))
            before, filters = before + part.before, filters + part.filters
        lengths = torch.tensor([part.after for part in parts])
        return Axis(
            before=before,
            filters=filters,
            places=torch.cat([part.places for part in parts], 1) + torch.tensor(begins).repeat_interleave(lengths, 0).T,
            share=torch.cat([part.share for part in parts]),
            gain=torch.cat([part.gain for part in parts]),
        )


class Axes:
    """Makes axes from segments, each stretch once: in a dense network every layer reads all that came before it."""

    def __init__(self, plan: AttackPlan) -> None:
        self.plan = plan
        self._known: dict[tuple[int, int, int], Axis] = {}
        self._places: dict[tuple[int, int], Tensor] = {}

    def of(self, segments: tuple[Segment, ...]) -> Axis:
        """The axis that these segments make up."""
        return Axis.join([self._stretch(segment) for segment in segments])

    def blend(self, rows: tuple[Segment, ...]) -> Blend | None:
        """What the rows of these segments are made of; None: all are plain."""
        parts, filters, count = [], [], 0
        for segment in rows:
            planned = self.plan.spaces.get(segment.space)
            length = segment.length if planned is None else planned.after * segment.repeat
            blend = None if planned is None else planned.blend
            if blend is None or planned is None or planned.place.forms.get(segment.point) == "even":
                parts.append(Blend.plain(length))
            else:
                parts.append(blend.repeat(segment.repeat))
            filters.append(count)
            count += self._stretch(segment).filters
        joined = Blend.join(parts, filters)
        return joined if joined.amount.numel() else None

    def threshold(self, rows: tuple[Segment, ...]) -> Tensor:
        """Below which value the activations behind each row are zero."""
        found = []
        for segment in rows:
            planned = self.plan.spaces.get(segment.space)
            dead = planned is not None and planned.counts[Kind.DEAD_RANGE]
            depth = planned.place.depths.threshold if planned is not None and dead else 0.0
            found.append(torch.full((self.plan.width(segment.space) * segment.repeat,), depth, dtype=torch.float64))
        return torch.cat(found)

    def sheltered(self, linear: LinearMap) -> Tensor:
        """Which columns are never negative, whenever the weight is used."""
        positive = self.plan.surroundings.reads[linear.weight]
        lengths = [self.plan.width(s.space) * s.repeat for s in linear.columns or ()]
        return torch.tensor(positive, dtype=torch.bool).repeat_interleave(torch.tensor(lengths, dtype=torch.int64))

    def _stretch(self, segment: Segment) -> Axis:
        key = (segment.space, segment.repeat, segment.tap)
        if key not in self._known:
            self._known[key] = self._make(segment)
        return self._known[key]

    def _make(self, segment: Segment) -> Axis:
        planned, repeat = self.plan.spaces.get(segment.space), segment.repeat
        if planned is None:
            return Axis.plain(segment.length)
        key = (segment.space, repeat)
        if key not in self._places:
            self._places[key] = _places(planned, repeat)
        share, gain = planned.share, planned.gains.get(segment.tap)
        gain = torch.ones_like(share) if gain is None else gain
        return Axis(
            segment.length, planned.filters * repeat, self._places[key], repeated(share, repeat), repeated(gain, repeat)
        )


def _places(planned: SpacePlan, repeat: int) -> Tensor:
    numbers = entries(torch.stack([planned.model, planned.filter]), repeat)
    return torch.cat([numbers, repeated(planned.kind, repeat)[None]])
