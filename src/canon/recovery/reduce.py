"""From classes to compact tensors: merge, see what is alive, fold constants, keep groups equal and known widths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from canon._memory import Empty, separate
from canon.describe import Array
from canon.graph import ChannelGraph, LinearMap, Segment, Space
from canon.graph.tensors import shape_of
from canon.recovery.constants import foldable, starts
from canon.recovery.liveness import find_live
from canon.recovery.merge import Merged
from canon.recovery.noise import OUTSTANDING, level
from canon.recovery.outcome import SpaceOutcome
from canon.recovery.partition import Classes
from canon.recovery.slots import choose_slots, unmerge
from canon.recovery.tolerance import Tolerance
from canon.rewrite import SpaceRewrite
from canon.rewrite.axes import repeated
from canon.rewrite.kernels import Ends, Kernel
from canon.rewrite.tensors import Rewrites, written


def plan(
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    classes: Mapping[int, Classes],
    tolerance: Tolerance,
    widths: Mapping[int, int],
    stay: Mapping[int, Tensor] = MappingProxyType({}),
) -> Plan:
    """Decide what remains, and write nothing yet.

    Args:
        graph: The channel graph.
        tensors: The model's tensors by first name.
        classes: By space id.
        tolerance: What counts as zero.
        widths: Known widths by space id; a space that would become narrower keeps ambiguous channels instead.
        stay: By space id: channels to keep whatever they are.
    """
    protect = {s.id: stay.get(s.id, torch.zeros(s.width, dtype=torch.bool)) for s in graph.spaces}
    known: _Layers = {}
    while True:
        chosen = Plan(graph, tensors, classes, tolerance, protect, known)
        missing = chosen.missing(widths)
        if not missing:
            return chosen
        for space, channels in missing.items():
            protect[space] = protect[space] | channels


_Layers = dict[str, tuple[list[Classes], Merged]]
"""By weight: a merged layer, and the classes of the spaces that it lies between."""


class Plan:
    """What remains of a model, with a given set of protected channels."""

    def __init__(
        self,
        graph: ChannelGraph,
        tensors: Mapping[str, Tensor],
        classes: Mapping[int, Classes],
        tolerance: Tolerance,
        protect: Mapping[int, Tensor],
        known: _Layers,
    ) -> None:
        self.graph, self.tensors, self.protect = graph, tensors, protect
        self.classes = {s.id: unmerge(classes[s.id], protect[s.id]) for s in graph.spaces}
        self.leaders, self.filler = {}, {}
        for space in graph.spaces:
            slots = choose_slots(self.classes[space.id], space)
            self.leaders[space.id], self.filler[space.id] = slots
        merges = {s.id: self._merge(s) for s in graph.spaces if not s.pins and self._merges(s)}
        # Two members may agree by chance better than the noise in them; most classes of a model show the same.
        floor = max(32 * tolerance.rounding, OUTSTANDING * (level(self.classes) or 0.0))
        self.merged: dict[int, Merged] = {}
        by_weight: dict[str, Merged] = {}
        for index, linear in enumerate(graph.maps):
            if linear.weight not in by_weight:
                between = [self.classes[s.space] for s in (*linear.rows, *(linear.columns or ()))]
                old = known.get(linear.weight)
                if old is None or any(a is not b for a, b in zip(old[0], between, strict=True)):
                    weight, shape = partial(tensors.__getitem__, linear.weight), shape_of(tensors, linear.weight)
                    old = (
                        between,
                        Merged(weight, shape, linear, merges, self._spread(linear), floor, tolerance.smallest),
                    )
                    known[linear.weight] = old
                by_weight[linear.weight] = old[1]
            self.merged[index] = by_weight[linear.weight]
        counts = {s.id: self.leaders[s.id].numel() for s in graph.spaces}
        guarded = {s.id: protect[s.id][self.leaders[s.id]] for s in graph.spaces}
        self.folded = foldable(graph, tensors, self.classes, self.leaders, self.merged, guarded)
        reads = {i: partial(self._read, i) for i in self.merged}
        live = find_live(graph, counts, reads, guarded)
        # A space of which nothing at all is read is left.
        self.live = {index: marks if bool(marks.any()) else torch.ones_like(marks) for index, marks in live.items()}

    def _merges(self, space: Space) -> bool:
        return self.leaders[space.id].numel() < space.width or bool(self.filler[space.id].any())

    def _merge(self, space: Space, live: Tensor | None = None) -> SpaceRewrite:
        """Every class into the channel that leads it, or into nothing where that is not alive."""
        classes, leaders, real = self.classes[space.id], self.leaders[space.id], ~self.filler[space.id]
        if live is not None:
            leaders, real = leaders[live], real[live]
        place = torch.full((space.width,), -1, dtype=torch.int64)
        place[leaders[real]] = torch.arange(leaders.numel())[real]
        return SpaceRewrite.merge(leaders, torch.where(classes.null, -1, place[classes.leader]), classes.factors)

    def _spread(self, linear: LinearMap) -> Array:
        parts = [repeated(self.classes[s.space].spread, s.repeat).numpy() for s in linear.columns or ()]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _read(self, index: int, live: Tensor) -> Tensor:
        """A column that goes into a bias is read no more."""
        read, columns = self.merged[index].read(live), self.graph.maps[index].columns or ()
        if any(s.space in self.folded for s in columns):
            gone = [repeated(self._folded(s.space), s.repeat) for s in columns]
            read = read & ~torch.cat(gone).view(read.shape)
        return read

    def _folded(self, space: int) -> Tensor:
        return self.folded.get(space, torch.zeros(self.leaders[space].numel(), dtype=torch.bool))

    def missing(self, widths: Mapping[int, int]) -> dict[int, Tensor]:
        """Channels to protect so that groups stay equal and no space falls below its known width."""
        found = {}
        remain = {s.id: s.width if s.pins else int(self.live[s.id].sum()) for s in self.graph.spaces}
        for space in self.graph.spaces:
            if space.pins:
                continue
            kept = torch.zeros(space.width, dtype=torch.bool)
            kept[self.leaders[space.id][self.live[space.id]]] = True
            block = space.width // space.groups
            per_block = kept.view(space.groups, block).sum(dim=1)
            wanted = int(per_block.max())
            if space.id in widths:
                wanted = max(wanted, min(widths[space.id] // space.groups, block))
            wanted = max([wanted, *(remain[peer] for peer in space.peers)])
            wanted = min(block, -(-wanted // space.multiple) * space.multiple)
            if bool((per_block == wanted).all()):
                continue
            rank = self._rank(space)
            chosen = torch.zeros(space.width, dtype=torch.bool)
            for index in torch.nonzero(per_block < wanted).flatten().tolist():
                candidates = torch.arange(index * block, (index + 1) * block)
                candidates = candidates[~kept[candidates]]
                order = torch.argsort(rank[candidates], stable=True)
                chosen[candidates[order[: wanted - int(per_block[index])]]] = True
            found[space.id] = chosen
        return found

    def _rank(self, space: Space) -> Tensor:
        """Which removed channels to take back first: constants, nulls, unread ones, then duplicates.

        Of one kind, those come first that bring no other channel back to life: an injected channel reads injected ones.
        """
        classes = self.classes[space.id]
        rank = torch.full((space.width,), 3.0, dtype=torch.float64)
        rank[classes.leader == torch.arange(space.width)] = 2
        rank[classes.null] = 1
        rank[classes.constant] = 0
        return rank + 0.5 * self._revived(space)

    def _revived(self, space: Space) -> Tensor:
        """Per channel, the share of its columns that are dead and would have to live again with it."""
        share = torch.zeros(space.width, dtype=torch.float64)
        slots = self.leaders[space.id]
        for producer in space.producers:
            linear = self.graph.maps[producer.map]
            if linear.columns is None:
                continue
            raw = self.tensors[linear.weight].detach().movedim(linear.row_axis, 0)
            raw = raw.narrow(0, producer.offset, space.width * producer.repeat) if linear.groups == 1 else raw
            written = (raw.reshape(space.width, -1) != 0).double().mean(dim=1).cpu()
            dead = torch.cat([~self.live[s.space].repeat_interleave(s.repeat) for s in linear.columns])
            reads = self.merged[producer.map].marks()
            revived = (reads & dead.to(reads.device).view(reads.shape[0], 1, -1)).double().mean(dim=2).flatten().cpu()
            start = sum(self.leaders[s.space].numel() * s.repeat for s in linear.rows if s.offset < producer.offset)
            part = revived[start : start + slots.numel() * producer.repeat]
            written[slots] = part.view(slots.numel(), -1).mean(dim=1)
            share = torch.maximum(share, written)
        return share

    @cached_property
    def outcomes(self) -> dict[int, SpaceOutcome]:
        """By space id: what becomes of its channels."""
        return {s.id: self._outcome(s) for s in self.graph.spaces}

    @property
    def unsettled(self) -> bool:
        """Whether more may be constant, or go into biases, in the model as it will be.

        What read a constant beside padding may be constant itself once that is gone; and a constant that dead rows
        read beside padding can go once they are gone.
        """
        kept = [o.classes.constant[o.kept] & ~o.protected[o.kept] for o in self.outcomes.values()]
        return bool(self.folded) or any(bool(marks.any()) for marks in kept)

    @cached_property
    def rewrites(self) -> Rewrites:
        """What happens to the spaces that become narrower."""
        narrower = [s for s in self.graph.spaces if self.outcomes[s.id].kept.numel() < s.width]
        return {s.id: replace(self._merge(s, self.live[s.id]), constants=self._constants(s)) for s in narrower}

    def unused_ends(self, kernels: Mapping[str, Kernel]) -> dict[str, tuple[Ends, ...]]:
        """By weight that will be written, where there are any: ends of kernels that nothing uses, and that can go.

        Args:
            kernels: By weight: how a layer lays its kernel.
        """
        rewrites, found = self.rewrites, {}
        for index, linear in enumerate(self.graph.maps):
            between = (*linear.rows, *(linear.columns or ()))
            kernel = kernels.get(linear.weight)
            if kernel is not None and kernel.is_padded and any(segment.space in rewrites for segment in between):
                used = self.merged[index].used(*self._remaining(linear))
                found[linear.weight] = () if used is None else kernel.removable(used)
        return {name: ends for name, ends in found.items() if ends}

    def write(
        self, empty: Empty = separate, kernels: Mapping[str, Sequence[Ends]] = MappingProxyType({})
    ) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that changes, one after the other, by first name.

        Args:
            empty: Where to write weights.
            kernels: The `unused_ends` that go.
        """

        def weight(index: int, linear: LinearMap) -> Tensor:
            rows, columns = self._remaining(linear)
            return self.merged[index].write(rows, columns, empty, kernels.get(linear.weight, ()))

        return written(self.tensors, self.graph, self.rewrites, weight)

    def _remaining(self, linear: LinearMap) -> tuple[Tensor, Tensor | None]:
        """Rows and columns of a layer, after the merge, that are alive."""
        return self._select(linear.rows), None if linear.columns is None else self._select(linear.columns)

    def _constants(self, space: Space) -> dict[int, Tensor]:
        """By point: the values of constants that go into biases, zero for all other channels."""
        if space.id not in self.folded:
            return {}
        classes = self.classes[space.id]
        gone = torch.zeros(space.width, dtype=torch.bool)
        gone[self.leaders[space.id][self.folded[space.id]]] = True
        gone = gone[classes.leader] & classes.constant
        return {point: torch.where(gone, value.nan_to_num(), 0.0) for point, value in classes.values.items()}

    def _outcome(self, space: Space) -> SpaceOutcome:
        leaders, live = self.leaders[space.id].numpy(), self.live[space.id].numpy()
        dead, folded = np.zeros((2, space.width), dtype=bool)
        dead[leaders[~live & ~self.filler[space.id].numpy()]] = True
        if space.id in self.folded:
            folded[leaders[self.folded[space.id].numpy()]] = True
        cancelled = np.zeros(space.width)
        ratios = []
        for consumer in space.consumers:
            ratio = self.merged[consumer.map].cancelled
            if ratio is not None:
                start = starts(self.graph.maps[consumer.map], self.leaders)[consumer.offset]
                part = ratio[start : start + leaders.size * consumer.repeat]
                ratios.append(part if consumer.repeat == 1 else part.reshape(-1, consumer.repeat).max(axis=1))
        if ratios:
            cancelled[leaders] = np.array(ratios).max(axis=0)
        return SpaceOutcome(
            classes=self.classes[space.id],
            kept=torch.from_numpy(leaders[live]),
            dead=torch.from_numpy(dead & ~folded),
            folded=torch.from_numpy(folded),
            protected=self.protect[space.id],
            cancelled=torch.from_numpy(cancelled),
        )

    def _select(self, segments: tuple[Segment, ...]) -> Tensor:
        """Entries of an axis, after the merge, that are alive."""
        return torch.nonzero(torch.cat([repeated(self.live[s.space], s.repeat) for s in segments])).flatten()
