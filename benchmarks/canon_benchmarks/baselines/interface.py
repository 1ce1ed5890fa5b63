"""What a baseline is: given what it may know, it gives a model or says why not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from canon.graph import ChannelGraph, Space, trace
from canon.recovery.capture import Capture, capture, make_probes
from canon.rewrite import SpaceRewrite
from canon.rewrite.axes import columns_of

BATCH = 32
"""Inputs per forward pass."""


@dataclass(frozen=True)
class BaselineResult:
    """What a baseline made of a model."""

    model: nn.Module | None
    """A new model, which need not compute what the given one does; None when the baseline does not apply."""

    note: str
    """What was done, or why it could not be."""


@dataclass(frozen=True, eq=False)
class Observation:
    """A traced model and what its channels did on some inputs."""

    graph: ChannelGraph
    captured: Mapping[int, Capture]

    def summaries(self, space: Space, tap: int | None = None) -> Tensor:
        """Summaries of a space's channels, `width x (points · inputs)`, at all points or at those of one tap."""
        points = dict.fromkeys(c.point for c in space.consumers if tap is None or c.tap == tap)
        parts = [self.captured[p].summaries * self.captured[p].scale for p in points]
        return torch.cat(parts, dim=1) if parts else torch.zeros(space.width, 0, dtype=torch.float64)


def observe(model: nn.Module, example: Any, samples: Tensor | None, count: int, seed: int) -> Observation:
    """Run a model on the first `count` samples, or on as many random probes when there are none."""
    graph = trace(model, example)
    if samples is None:
        inputs = make_probes(example, count, BATCH, seed)
    else:
        inputs = [(batch,) for batch in samples[:count].split(BATCH)]
    return Observation(graph, capture(model, graph, inputs))


def unread_channels(space: Space, graph: ChannelGraph, tensors: Mapping[str, Tensor]) -> Tensor:
    """By channel: whether every column that reads it is zero."""
    unread = torch.ones(space.width, dtype=torch.bool)
    for consumer in space.consumers:
        linear = graph.maps[consumer.map]
        columns = columns_of(tensors[linear.weight], linear, consumer.offset, space.width * consumer.repeat)
        unread &= ~(columns != 0).any(dim=2).any(dim=0).view(space.width, -1).any(dim=1).cpu()
    return unread


def merged(space: Space, leader: Tensor, gone: Tensor, factors: Mapping[int, Tensor]) -> SpaceRewrite:
    """Every channel goes into its leader, and those that are gone into nothing."""
    keep = torch.nonzero((leader == torch.arange(space.width)) & ~gone).flatten()
    place = torch.full((space.width,), -1, dtype=torch.int64)
    place[keep] = torch.arange(keep.numel())
    return SpaceRewrite.merge(keep, torch.where(gone, -1, place[leader]), factors)


class Baseline(ABC):
    """A defence of someone else's. `recover` checks what it needs; authors write `_recover`."""

    name: str
    """How the benchmark calls it."""

    needs_samples: bool = False
    needs_original: bool = False

    @final
    def recover(
        self,
        model: nn.Module,
        example: Tensor | tuple[Any, ...],
        *,
        samples: Tensor | None = None,
        original: nn.Module | None = None,
        seed: int = 0,
    ) -> BaselineResult:
        """Try to undo an attack.

        Args:
            model: The attacked model, in evaluation mode. It is not changed.
            example: An input tensor or tuple of inputs.
            samples: Inputs like those the model was trained on, one batch.
            original: The model before the attack.
            seed: Of random probes.
        """
        if self.needs_samples and samples is None:
            return BaselineResult(None, "needs samples of the training distribution")
        if self.needs_original and original is None:
            return BaselineResult(None, "needs the original model")
        return self._recover(model, example, samples, original, seed)

    @abstractmethod
    def _recover(
        self, model: nn.Module, example: Any, samples: Tensor | None, original: nn.Module | None, seed: int
    ) -> BaselineResult:
        """The defence itself."""
