"""What both alignments with an original model share: similarity of channels, and rescaling to the original's scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from canon.rewrite import SpaceRewrite, rewrite
from canon_benchmarks.baselines.interface import Observation, observe


def same_spaces(first: Observation, second: Observation) -> bool:
    """Whether two models have the same spaces, each free in both or in none."""
    a = [(s.name, bool(s.pins), len(s.consumers)) for s in first.graph.spaces]
    return a == [(s.name, bool(s.pins), len(s.consumers)) for s in second.graph.spaces]


def unit(u: Tensor, centred: bool = False) -> Tensor:
    """Rows of length one; rows of zeros stay."""
    if centred:
        u = u - u.mean(dim=1, keepdim=True)
    length: Tensor = u.norm(dim=1, keepdim=True)
    return u / length.clamp(min=1e-300)


def scale_of(u: Tensor, reference: Tensor) -> Tensor:
    """Least-squares factor per row with `u ≈ factor · reference`; 1 where nothing is known."""
    weight = (reference * reference).sum(dim=1)
    factor = (u * reference).sum(dim=1) / weight.clamp(min=1e-300)
    return torch.where((weight > 0) & (factor > 0), factor, torch.ones_like(factor))


def rescale(
    model: nn.Module, example: Any, samples: Tensor | None, target: Observation, count: int, seed: int
) -> nn.Module:
    """Bring every channel to the scale that it has in the target, wherever the network lets a scale pass."""
    seen = observe(model, example, samples, count, seed)
    rewrites = {}
    for space, like in zip(seen.graph.spaces, target.graph.spaces, strict=True):
        if space.pins:
            continue
        scales = {}
        for consumer, other in zip(space.consumers, like.consumers, strict=True):
            if consumer.tap not in seen.graph.fixed_taps:
                u, reference = target.summaries(like, other.tap), seen.summaries(space, consumer.tap)
                scales[consumer.tap] = scale_of(u, reference)
        rewrites[space.id] = SpaceRewrite.scaling(space.width, scales)
    return rewrite(model, seen.graph, rewrites)
