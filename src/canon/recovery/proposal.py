"""Proposal: what a pass would change, space by space, and the functions that write it.

A change is told as tensors: `W·M` for readers, other rows for producers. Widths stay: a channel that nothing reads
any more is dropped when the model is made compact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from canon.describe import Array
from canon.graph import ChannelGraph, Space
from canon.recovery.facts import Subject
from canon.recovery.noise import OUTSTANDING
from canon.recovery.outcome import SpaceOutcome
from canon.rewrite.axes import parameter_axis
from canon.rewrite.kernels import Kernel
from canon.rewrite.spec import SpaceRewrite
from canon.rewrite.tensors import column_transform
from canon.rewrite.weights import write_weight
from canon.transforms import ChannelTransform, entries


@dataclass(frozen=True, eq=False)
class SpaceChange:
    """What happens to one space."""

    space: int
    channels: Tensor
    """Those that become useless, int64."""

    tensors: Mapping[str, Tensor]
    """Tensors that change, by first name."""

    order: Tensor | None = None
    """The channels that stand in each place afterwards, where they move."""

    noise: float = 0.0
    """How much is left, relative to what was added up, where these channels were seen to cancel."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """What a pass proposes: changes, one after the other, each on what the one before has made."""

    changes: tuple[SpaceChange, ...] = ()
    graph: ChannelGraph | None = None
    """The channel graph afterwards; None: as before."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """What changes besides, where widths do."""

    outcomes: Mapping[int, SpaceOutcome] = field(default_factory=dict)
    """By space id, where channels went: what became of them."""

    again: bool = False
    """Whether the pass may find more in what it has made."""

    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    """By weight whose kernels became smaller: how its layer lays them."""

    @property
    def changed(self) -> dict[str, Tensor]:
        """All tensors that are not what they were."""
        found: dict[str, Tensor] = {}
        for change in self.changes:
            found.update(change.tensors)
        return {**found, **self.tensors}

    def applied(self, subject: Subject) -> Subject:
        """The subject afterwards."""
        after = subject.with_tensors(self.changed)
        if self.graph is None:
            return after
        merged = dict(subject.merged)
        for index, outcome in self.outcomes.items():
            leader, known = outcome.classes.leader.numpy(), subject.members(subject.graph.spaces[index])
            merged[index] = np.bincount(leader, known, minlength=leader.size)[outcome.kept.numpy()]
        return replace(after, graph=self.graph, merged=merged, kernels={**subject.kernels, **self.kernels})


def space_by_space(
    subject: Subject, spaces: Iterable[Space], change: Callable[[Subject, Space], SpaceChange | None]
) -> Proposal | None:
    """The changes of some spaces, each asked for with those before it made; None where there is none."""
    changes = []
    for space in spaces:
        found = change(subject, space)
        if found is not None:
            changes.append(found)
            subject = subject.with_tensors(found.tensors)
    return Proposal(tuple(changes)) if changes else None


def move_columns(subject: Subject, space: Space, transforms: Mapping[int, ChannelTransform]) -> dict[str, Tensor]:
    """`W ← W·M` at every layer that reads a space, with M by tap. M is square."""
    everyone, same = torch.arange(space.width), ChannelTransform.identity(space.width)
    rewrites = {space.id: SpaceRewrite(space.width, everyone, same, transforms=transforms)}
    changed: dict[str, Tensor] = {}
    for consumer in space.consumers:
        linear = subject.graph.maps[consumer.map]
        if linear.weight not in changed:
            columns = column_transform(linear, rewrites)
            changed[linear.weight] = write_weight(subject.tensors[linear.weight], linear, None, columns)
    return changed


def add_up(
    subject: Subject, space: Space, transforms: Mapping[int, ChannelTransform], off: float
) -> tuple[dict[str, Tensor], float]:
    """`move_columns`, where sums that cancel at every reader, but for noise, are zero; and the noise that shows.

    Args:
        subject: What is looked at.
        space: One of its spaces.
        transforms: M by tap.
        off: How far channels are from what they are taken for.
    """
    changed = move_columns(subject, space, transforms)
    after = subject.with_tensors(changed)
    limit = min(subject.tolerance.zero, max(32 * subject.tolerance.rounding, OUTSTANDING * off))
    left, several = torch.zeros(space.width).double(), torch.zeros(space.width, dtype=torch.bool)
    for consumer in space.consumers:
        transform = transforms[consumer.tap]
        columns = (one.columns(space, consumer).double().cpu() for one in (subject, after))
        size, made = (part.square().sum(dim=(0, 2)).sqrt() for part in columns)
        mass = torch.zeros_like(made).index_add_(0, transform.columns, transform.values.abs() * size[transform.rows])
        left = torch.maximum(left, torch.where(mass > 0, made / mass, 0.0))
        several |= torch.bincount(transform.columns, minlength=space.width) > 1
    gone = several & (left > 0) & (left <= limit)
    if not bool(gone.any()):
        return changed, 0.0
    empty = unread(after, space, torch.nonzero(gone).flatten())
    return {**changed, **empty}, max(off, float(left[gone].max()))


def unread(subject: Subject, space: Space, channels: Tensor) -> dict[str, Tensor]:
    """Nothing reads these channels any more."""
    into = torch.arange(space.width).index_fill(0, channels, -1)
    transform = ChannelTransform.merge(into, torch.ones(space.width), space.width)
    return move_columns(subject, space, {consumer.tap: transform for consumer in space.consumers})


def drop(subject: Subject, space: Space, channels: Tensor) -> dict[str, Tensor]:
    """Nothing reads these channels any more, and they read nothing."""
    changed = scale_rows(subject, space, channels, 0.0)
    return {**changed, **unread(subject.with_tensors(changed), space, channels)}


def hold(subject: Subject, space: Space, still: Array, dead: Array) -> SpaceChange | None:
    """Channels that never move read nothing, and nothing reads those of them that are zero; None: there are none."""
    if not still.any():
        return None
    channels, gone = (torch.from_numpy(np.flatnonzero(marks)) for marks in (still, still & dead))
    changed = scale_rows(subject, space, channels, 0.0)
    return SpaceChange(space.id, channels, {**changed, **unread(subject.with_tensors(changed), space, gone)})


def scale_rows(subject: Subject, space: Space, channels: Tensor, factor: float) -> dict[str, Tensor]:
    """Multiply the rows that make some channels, not their biases."""
    changed: dict[str, Tensor] = {}
    for producer in space.producers:
        linear = subject.graph.maps[producer.map]
        if linear.weight not in changed:
            weight = subject.tensors[linear.weight].detach().clone()
            rows = entries(channels, producer.repeat, producer.offset).to(weight.device)
            weight.movedim(linear.row_axis, 0)[rows] *= factor
            changed[linear.weight] = weight
    return changed


def negate(subject: Subject, space: Space, channels: Tensor, points: Iterable[int]) -> dict[str, Tensor]:
    """Turn the sign of channels at some points: of the rows that make them, and of every shift on the way there."""
    shifts, way = [], set(points)
    for stage in reversed(space.stages):
        if stage.output in way:
            way.update(stage.inputs)
            shifts += [(stage.params.get(r), stage.offset, parameter_axis(stage, r)) for r in ("mean", "bias")]
    makers = tuple(producer for producer in space.producers if producer.point in way)
    shifts += [(subject.graph.maps[p.map].bias, p.offset, 0) for p in makers]
    changed = scale_rows(subject, replace(space, producers=makers), channels, -1.0)
    for name, offset, axis in shifts:
        if name is not None and name not in changed:
            tensor = subject.tensors[name].detach().clone()
            tensor.movedim(axis, 0)[(channels + offset).to(tensor.device)] *= -1
            changed[name] = tensor
    return changed
