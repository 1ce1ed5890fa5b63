"""From classes to compact tensors: merge, see what is alive, fold constants, keep groups equal and known widths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from canon.graph import ChannelGraph, LinearMap, Segment, Space
from canon.recovery.constants import plan_folds
from canon.recovery.liveness import find_live
from canon.recovery.merge import Merged, SpaceMerge, inner_places, merge_layer, unfold
from canon.recovery.partition import Classes
from canon.recovery.slots import choose_slots, unmerge
from canon.recovery.tolerance import Tolerance
from canon.rewrite import SpaceRewrite
from canon.rewrite.tensors import rewrite_stages
from canon.transforms import ChannelTransform


@dataclass(frozen=True, eq=False)
class SpaceOutcome:
    """What became of one space's channels."""

    classes: Classes
    kept: Tensor
    """Channels that remain, ascending."""

    dead: Tensor
    """Bool per channel: leads a class that nothing alive reads."""

    folded: Tensor
    """Bool per channel: leads a constant class that went into biases."""

    protected: Tensor
    """Bool per channel: kept although nothing in the weights asks for it."""

    cancelled: Tensor
    """Per channel that leads a class: largest ratio of a sum taken for zero to what was added up."""


@dataclass(frozen=True, eq=False)
class Reduction:
    """The compact tensors and how they came about."""

    tensors: dict[str, Tensor]
    """Changed tensors by first name."""

    rings: dict[str, int]
    """By weight: how many rings of zeros around its kernels were not written."""

    outcomes: dict[int, SpaceOutcome]
    """By space id."""


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
    protect = {s.id: torch.zeros(s.width, dtype=torch.bool) for s in graph.spaces}
    known: _Layers = {}
    while True:
        attempt = _Attempt(graph, tensors, classes, tolerance, protect, known)
        missing = attempt.missing(widths)
        if not missing:
            return attempt.finish()
        for space, channels in missing.items():
            protect[space] = protect[space] | channels


_Layers = dict[str, tuple[list[Classes], Merged]]
"""By weight: a merged layer, and the classes of the spaces that it lies between."""


class _Attempt:
    """One try with a given set of protected channels."""

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
                    weight = tensors[linear.weight]
                    old = (between, merge_layer(weight, linear, changes, self._spread(linear), floor, smallest))
                    known[linear.weight] = old
                by_weight[linear.weight] = old[1]
            self.merged[index] = by_weight[linear.weight]
        counts = {s.id: self.leaders[s.id].numel() for s in graph.spaces}
        guarded = {s.id: protect[s.id][self.leaders[s.id]] for s in graph.spaces}
        self.folds = plan_folds(graph, tensors, self.classes, self.leaders, self.merged, guarded)
        reads = {i: self._reads(i, m) for i, m in self.merged.items()}
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

    def _spread(self, linear: LinearMap) -> Tensor:
        parts = [_repeated(self.classes[s.space].spread, s.repeat) for s in linear.columns or ()]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def _reads(self, index: int, merged: Merged) -> Tensor:
        """A column that was folded into a bias is read no more."""
        gone = self.folds.columns.get(index)
        if gone is None:
            return merged.reads
        groups = merged.reads.shape[0]
        return merged.reads & ~gone.to(merged.reads.device).view(groups, 1, -1)

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
            reads = self.merged[producer.map].reads
            revived = (reads & dead.to(reads.device).view(reads.shape[0], 1, -1)).double().mean(dim=2).flatten().cpu()
            start = sum(self.leaders[s.space].numel() * s.repeat for s in linear.rows if s.offset < producer.offset)
            part = revived[start : start + slots.numel() * producer.repeat]
            written[slots] = part.view(slots.numel(), -1).mean(dim=1)
            share = torch.maximum(share, written)
        return share

    def finish(self) -> Reduction:
        outcomes = {s.id: self._outcome(s) for s in self.graph.spaces}
        changed_spaces = {i for i, o in outcomes.items() if o.kept.numel() < o.dead.numel()}
        tensors: dict[str, Tensor] = {}
        rings: dict[str, int] = {}
        calls = Counter(linear.weight for linear in self.graph.maps)
        for index, linear in enumerate(self.graph.maps):
            rows = any(s.space in changed_spaces for s in linear.rows)
            columns = any(s.space in changed_spaces for s in linear.columns or ())
            if linear.weight in tensors:
                continue
            if rows or columns:
                tensors[linear.weight], cropped = self._weight(index, linear, calls[linear.weight] == 1)
                if cropped:
                    rings[linear.weight] = 1
            if linear.bias is not None and (rows or index in self.folds.offsets):
                tensors[linear.bias] = self._bias(index, linear)
        tensors.update(self._stages(outcomes, changed_spaces))
        return Reduction(tensors, rings, outcomes)

    def _outcome(self, space: Space) -> SpaceOutcome:
        leaders, live = self.leaders[space.id], self.live[space.id]
        dead = torch.zeros(space.width, dtype=torch.bool)
        dead[leaders[~live & ~self.filler[space.id]]] = True
        folded = torch.zeros(space.width, dtype=torch.bool)
        if space.id in self.folds.spaces:
            folded[leaders[self.folds.spaces[space.id]]] = True
        cancelled = torch.zeros(space.width, dtype=torch.float64)
        ratios = []
        for consumer in space.consumers:
            ratio = self.merged[consumer.map].cancelled
            if ratio is not None:
                start = self.starts[consumer.map][consumer.offset]
                part = ratio[start : start + leaders.numel() * consumer.repeat]
                ratios.append(part if consumer.repeat == 1 else part.view(-1, consumer.repeat).amax(dim=1))
        if ratios:
            cancelled[leaders] = torch.stack(ratios).amax(dim=0)
        return SpaceOutcome(
            self.classes[space.id], leaders[live], dead & ~folded, folded,
            self.protect[space.id], cancelled,
        )  # fmt: skip

    def _select(self, segments: tuple[Segment, ...]) -> Tensor:
        """Entries of an axis, after the merge, that are alive."""
        return torch.nonzero(torch.cat([_repeated(self.live[s.space], s.repeat) for s in segments])).flatten()

    def _weight(self, index: int, linear: LinearMap, crop: bool) -> tuple[Tensor, bool]:
        """What remains of a layer's weight, and whether a ring of zeros around its kernels was left out."""
        merged, like = self.merged[index], self.tensors[linear.weight]
        groups, per_row, per_column = merged.reads.shape
        rows = self._select(linear.rows).view(groups, -1) % per_row
        columns = torch.arange(per_column)[None] if linear.columns is None else self._select(linear.columns)
        columns = columns.view(groups, -1) % per_column
        hollow = crop and merged.rim is not None and not _any(merged.rim, rows, columns)
        kernel = like.movedim((linear.row_axis, linear.column_axis), (0, 1)).shape[2:]
        places = inner_places(kernel) if hollow else None
        if groups == 1:
            picked = merged.take(rows[0], columns[0], places)[None]
        else:
            lane = torch.arange(groups)[:, None, None]
            picked = merged.weight[lane, rows[:, :, None], columns[:, None, :]]
            picked = picked if places is None else picked[..., places]
        return unfold(picked, like, linear, int(hollow)), hollow

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

    def _stages(self, outcomes: Mapping[int, SpaceOutcome], changed: set[int]) -> dict[str, Tensor]:
        rewrites = {}
        for space in changed:
            kept, width = outcomes[space].kept, outcomes[space].dead.numel()
            rewrites[space] = SpaceRewrite(width, kept, ChannelTransform.selection(kept, width))
        means = self.folds.means(self.tensors)
        result = rewrite_stages({**self.tensors, **means}, self.graph, rewrites)
        for name, tensor in means.items():
            result.setdefault(name, tensor)
        return result


def _any(marks: Tensor, rows: Tensor, columns: Tensor) -> bool:
    """Whether `groups x rows x columns` has a mark in some rows and columns of each group."""
    device = marks.device
    chosen = torch.zeros(marks.shape[0], marks.shape[1], 1, dtype=torch.bool, device=device)
    chosen.scatter_(1, rows.to(device)[..., None], True)
    return bool((marks & chosen).view(torch.uint8).amax(dim=1).gather(1, columns.to(device)).any())


def _repeated(values: Tensor, repeat: int) -> Tensor:
    return values if repeat == 1 else values.repeat_interleave(repeat)
