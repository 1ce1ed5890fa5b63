"""From classes to compact tensors: merge, see what is alive, fold constants, keep groups equal and known widths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from canon._memory import Empty, separate
from canon.describe import Array
from canon.graph import ChannelGraph, LinearMap, Segment, Space
from canon.graph.mapped import room_like
from canon.graph.tensors import shape_of
from canon.recovery.constants import plan_folds
from canon.recovery.liveness import find_live
from canon.recovery.merge import Merged, kernel_of, unfold
from canon.recovery.outcome import Reduction, SpaceOutcome
from canon.recovery.partition import Classes
from canon.recovery.slots import choose_slots, unmerge
from canon.recovery.sums import SpaceMerge
from canon.recovery.tolerance import Tolerance
from canon.rewrite import SpaceRewrite
from canon.rewrite.tensors import rewrite_stages
from canon.transforms import ChannelTransform


def reduce(
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    classes: Mapping[int, Classes],
    tolerance: Tolerance,
    widths: Mapping[int, int],
) -> Reduction:
    """Compact the model.

    Args:
        graph: The channel graph.
        tensors: The model's tensors by first name.
        classes: By space id.
        tolerance: What counts as zero.
        widths: Known widths by space id; a space that would become narrower keeps ambiguous channels instead.
    """
    chosen = plan(graph, tensors, classes, tolerance, widths)
    written, rings = {}, {}
    for name, tensor, cropped in chosen.write(room_like(tensors.values())):
        written[name] = tensor
        if cropped:
            rings[name] = cropped
    return Reduction(written, rings, chosen.outcomes)


def plan(
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    classes: Mapping[int, Classes],
    tolerance: Tolerance,
    widths: Mapping[int, int],
) -> Plan:
    """Decide what remains, and write nothing yet. Takes what `reduce` takes."""
    protect = {s.id: torch.zeros(s.width, dtype=torch.bool) for s in graph.spaces}
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
        merges = {s.id: self._merge_of(s) for s in graph.spaces if not s.pins}
        changes = {k: v for k, v in merges.items() if v is not None}
        self.merged: dict[int, Merged] = {}
        by_weight: dict[str, Merged] = {}
        for index, linear in enumerate(graph.maps):
            if linear.weight not in by_weight:
                between = [self.classes[s.space] for s in (*linear.rows, *(linear.columns or ()))]
                old = known.get(linear.weight)
                if old is None or any(a is not b for a, b in zip(old[0], between, strict=True)):
                    floor, smallest = 32 * tolerance.rounding, tolerance.smallest
                    weight, shape = partial(tensors.__getitem__, linear.weight), shape_of(tensors, linear.weight)
                    old = (between, Merged(weight, shape, linear, changes, self._spread(linear), floor, smallest))
                    known[linear.weight] = old
                by_weight[linear.weight] = old[1]
            self.merged[index] = by_weight[linear.weight]
        counts = {s.id: self.leaders[s.id].numel() for s in graph.spaces}
        guarded = {s.id: protect[s.id][self.leaders[s.id]] for s in graph.spaces}
        self.folds = plan_folds(graph, tensors, self.classes, self.leaders, self.merged, guarded)
        reads = {i: partial(self._read, i, m) for i, m in self.merged.items()}
        self.live = find_live(graph, counts, reads, guarded)
        self.starts = [self._starts(linear.columns or ()) for linear in graph.maps]

    def _starts(self, segments: tuple[Segment, ...]) -> dict[int, int]:
        """By where a segment starts before the merge: where it starts after it."""
        found, start = {}, 0
        for segment in segments:
            found[segment.offset] = start
            start += self.leaders[segment.space].numel() * segment.repeat
        return found

    def _merge_of(self, space: Space) -> SpaceMerge | None:
        classes, keep = self.classes[space.id], self.leaders[space.id]
        if keep.numel() == space.width and not bool(self.filler[space.id].any()):
            return None
        place = torch.full((space.width,), -1, dtype=torch.int64)
        real = ~self.filler[space.id]
        place[keep[real]] = torch.arange(keep.numel())[real]
        into = torch.where(classes.null, -1, place[classes.leader])
        return SpaceMerge(keep, into, classes.factors)

    def _spread(self, linear: LinearMap) -> Array:
        parts = [_repeated(self.classes[s.space].spread, s.repeat).numpy() for s in linear.columns or ()]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _read(self, index: int, merged: Merged, live: Tensor) -> Tensor:
        """A column that was folded into a bias is read no more."""
        read, gone = merged.read(live), self.folds.columns.get(index)
        return read if gone is None else read & ~gone.view(read.shape)

    def missing(self, widths: Mapping[int, int]) -> dict[int, Tensor]:
        """Channels to protect so that groups stay equal and no space falls below its known width."""
        found = {}
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

    def write(self, empty: Empty = separate) -> Iterator[tuple[str, Tensor, int]]:
        """Every tensor that changes, one after the other: its first name, and how many rings of zeros were left out.

        Args:
            empty: Where to write weights.
        """
        changed = {i for i, outcome in self.outcomes.items() if outcome.kept.numel() < outcome.dead.numel()}
        calls = Counter(linear.weight for linear in self.graph.maps)
        done: set[str] = set()
        for index, linear in enumerate(self.graph.maps):
            rows = any(s.space in changed for s in linear.rows)
            columns = any(s.space in changed for s in linear.columns or ())
            if linear.weight in done:
                continue
            if rows or columns:
                done.add(linear.weight)
                weight, cropped = self._weight(index, linear, calls[linear.weight] == 1, empty)
                yield linear.weight, weight, int(cropped)
                del weight
            if linear.bias is not None and (rows or index in self.folds.offsets):
                yield linear.bias, self._bias(index, linear), 0
        for name, tensor in self._stages(changed).items():
            yield name, tensor, 0

    def _outcome(self, space: Space) -> SpaceOutcome:
        leaders, live = self.leaders[space.id].numpy(), self.live[space.id].numpy()
        dead, folded = np.zeros((2, space.width), dtype=bool)
        dead[leaders[~live & ~self.filler[space.id].numpy()]] = True
        if space.id in self.folds.spaces:
            folded[leaders[self.folds.spaces[space.id].numpy()]] = True
        cancelled = np.zeros(space.width)
        ratios = []
        for consumer in space.consumers:
            ratio = self.merged[consumer.map].cancelled
            if ratio is not None:
                start = self.starts[consumer.map][consumer.offset]
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
        return torch.nonzero(torch.cat([_repeated(self.live[s.space], s.repeat) for s in segments])).flatten()

    def _weight(self, index: int, linear: LinearMap, crop: bool, empty: Empty) -> tuple[Tensor, bool]:
        """What remains of a layer's weight, and whether a ring of zeros around its kernels was left out."""
        merged, shape, groups = self.merged[index], shape_of(self.tensors, linear.weight), linear.groups
        rows = self._select(linear.rows).view(groups, -1) % merged.rows
        columns = torch.arange(merged.columns)[None] if linear.columns is None else self._select(linear.columns)
        columns = columns.view(groups, -1) % merged.columns
        hollow = False
        if crop and groups == 1:
            merged.see(_marked(rows, merged.rows))
            hollow = merged.hollow(columns[0])
        inside = kernel_of(shape, linear) if hollow else None
        if groups == 1:
            picked = merged.take(rows[0], columns[0], inside, empty)[None]
        else:
            lane = torch.arange(groups)[:, None, None]
            picked = merged.weight[lane, rows[:, :, None], columns[:, None, :]]
        return unfold(picked, shape, linear, int(hollow)), hollow

    def _bias(self, index: int, linear: LinearMap) -> Tensor:
        assert linear.bias is not None, "callers check"
        bias = self.tensors[linear.bias].detach()
        rows = self._rows_before(linear)
        picked = bias.index_select(0, rows.to(bias.device))
        offset = self.folds.offsets.get(index)
        if offset is not None:
            picked = (picked.double() + offset[self._select(linear.rows)].to(bias.device)).to(bias.dtype)
        return picked

    def _rows_before(self, linear: LinearMap) -> Tensor:
        index = []
        for s in linear.rows:
            kept = self.leaders[s.space][self.live[s.space]]
            if s.repeat > 1:
                kept = (kept[:, None] * s.repeat + torch.arange(s.repeat)).flatten()
            index.append(kept + s.offset)
        return torch.cat(index)

    def _stages(self, changed: set[int]) -> dict[str, Tensor]:
        rewrites = {}
        for space in changed:
            kept, width = self.outcomes[space].kept, self.outcomes[space].dead.numel()
            rewrites[space] = SpaceRewrite(width, kept, ChannelTransform.selection(kept, width))
        means = self.folds.means(self.tensors)
        names = {name for space in self.graph.spaces for stage in space.stages for name in stage.params.values()}
        given = {name: means[name] if name in means else self.tensors[name] for name in names}
        result = rewrite_stages(given, self.graph, rewrites)
        for name, tensor in means.items():
            result.setdefault(name, tensor)
        return result


def _marked(rows: Tensor, count: int) -> Tensor:
    """Rows by number, one line per group, as marks on `groups x count`."""
    return torch.zeros(rows.shape[0], count, dtype=torch.bool).scatter_(1, rows, True)


def _repeated(values: Tensor, repeat: int) -> Tensor:
    return values if repeat == 1 else values.repeat_interleave(repeat)
