"""Rewrite: what a pass proposes. New channels are `y' = L·y`, old ones `y = M·y' + b`, and readers follow with `W·M`.

The functions here write the tensors of one space: `move_columns` is `M`, `silence` and `negate` are `L`. Widths
stay: a channel that nothing reads any more is dropped when the model is made compact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from canon.graph import ChannelGraph, Space
from canon.recovery.facts import Subject
from canon.recovery.outcome import SpaceOutcome
from canon.rewrite import SpaceRewrite
from canon.rewrite.tensors import rewrite_columns
from canon.transforms import ChannelTransform


@dataclass(frozen=True, eq=False)
class Step:
    """What happens to one space."""

    space: int
    channels: Tensor
    """Those that become useless, int64."""

    tensors: Mapping[str, Tensor]
    """Tensors that change, by first name."""


@dataclass(frozen=True, eq=False)
class Rewrite:
    """What a pass proposes: steps, one after the other, each on what the one before has made."""

    steps: tuple[Step, ...] = ()
    graph: ChannelGraph | None = None
    """The channel graph afterwards; None: as before."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """What changes besides, where widths do."""

    outcomes: Mapping[int, SpaceOutcome] = field(default_factory=dict)
    """By space id, where channels went: what became of them."""

    rings: Mapping[str, int] = field(default_factory=dict)
    """By weight: how many rings of zeros around its kernels were not written."""

    @property
    def changed(self) -> dict[str, Tensor]:
        """All tensors that are not what they were."""
        found: dict[str, Tensor] = {}
        for step in self.steps:
            found.update(step.tensors)
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
        return replace(after, graph=self.graph, merged=merged)


def in_steps(steps: Sequence[Step]) -> Rewrite | None:
    """A rewrite of what was found, space by space; None where that is nothing."""
    return Rewrite(tuple(steps)) if steps else None


def move_columns(subject: Subject, space: Space, transforms: Mapping[int, ChannelTransform]) -> dict[str, Tensor]:
    """`W ← W·M` at every layer that reads a space, with M by tap. M is square."""
    rewrite = SpaceRewrite(
        space.width, torch.arange(space.width), ChannelTransform.identity(space.width), {}, transforms
    )
    changed: dict[str, Tensor] = {}
    for consumer in space.consumers:
        linear = subject.graph.maps[consumer.map]
        if linear.weight not in changed:
            weight = subject.tensors[linear.weight].detach()
            changed[linear.weight] = rewrite_columns(weight, linear, {space.id: rewrite})
    return changed


def forget(subject: Subject, space: Space, channels: Tensor) -> dict[str, Tensor]:
    """Nothing reads these channels any more."""
    keep = torch.ones(space.width, dtype=torch.float64)
    keep[channels] = 0.0
    into = torch.where(keep > 0, torch.arange(space.width), -1)
    transform = ChannelTransform.merge(into, keep, space.width)
    return move_columns(subject, space, {consumer.tap: transform for consumer in space.consumers})


def drop(subject: Subject, space: Space, channels: Tensor) -> dict[str, Tensor]:
    """Nothing reads these channels any more, and they read nothing."""
    changed = scale_rows(subject, space, channels, 0.0)
    return {**changed, **forget(subject.with_tensors(changed), space, channels)}


def scale_rows(subject: Subject, space: Space, channels: Tensor, factor: float) -> dict[str, Tensor]:
    """Multiply the rows that make some channels, not their biases."""
    changed: dict[str, Tensor] = {}
    for producer in space.producers:
        linear = subject.graph.maps[producer.map]
        if linear.weight in changed:
            continue
        weight = subject.tensors[linear.weight].detach().clone()
        rows = (channels[:, None] * producer.repeat + torch.arange(producer.repeat)).flatten() + producer.offset
        weight.movedim(linear.row_axis, 0)[rows.to(weight.device)] *= factor
        changed[linear.weight] = weight
    return changed


def negate(subject: Subject, space: Space, channels: Tensor, before: int) -> dict[str, Tensor]:
    """Turn the sign of channels at a point: of the rows that make them, and of every shift on the way there."""
    changed = scale_rows(subject, space, channels, -1.0)

    def turn(name: str, offset: int, axis: int) -> None:
        tensor = changed[name] if name in changed else subject.tensors[name].detach().clone()
        tensor.movedim(axis, 0)[(channels + offset).to(tensor.device)] *= -1
        changed[name] = tensor

    for producer in space.producers:
        bias = subject.graph.maps[producer.map].bias
        if bias is not None and bias not in changed:
            turn(bias, producer.offset, 0)
    way = _way_to(space, before)
    for stage in space.stages:
        if stage.output in way:
            for role in ("mean", "bias"):
                if role in stage.params and stage.params[role] not in changed:
                    turn(stage.params[role], stage.offset, stage.axis if stage.kind == "shift" else 0)
    return changed


def _way_to(space: Space, point: int) -> set[int]:
    """The points that a point is made from, and itself."""
    way = {point}
    for stage in reversed(space.stages):
        if stage.output in way:
            way.update(stage.inputs)
    return way
