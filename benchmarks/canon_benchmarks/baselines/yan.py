"""The preliminary defences of Yan et al. against their own attack, at three levels of knowledge.

Yan, Pan, Zhang, Yang, "Rethinking White-Box Watermarks on Deep Learning Models under Neural Structural Obfuscation",
USENIX Security 2023, section 7.4. There is no published code: what follows is built from the summary of that section in
Canon's paper, and each class says what had to be interpreted. It was evaluated on one primitive at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from canon.graph import Space
from canon.graph.tensors import tensor_names
from canon.recovery.outgoing import outgoing
from canon.recovery.proportion import components
from canon.rewrite import SpaceRewrite, rewrite
from canon_benchmarks.baselines.alignment import rescale, same_spaces, scale_of, unit
from canon_benchmarks.baselines.interface import Baseline, BaselineResult, Observation, merged, observe, unread_channels

CANCELLED = 1e-3
"""Columns that add up to this part of themselves are taken for zero."""


class _Elimination(Baseline):
    """Find suspicious neurons by their activations and remove them.

    Interpreted: suspicious is a neuron that is never active on the samples, that nothing reads, or whose activations on
    the samples have a cosine of at least `similar` with another's. Silent and unread ones go. A cluster goes when its
    columns, scaled by the ratio of activations, add up to zero at every layer behind; otherwise its first neuron
    stays and takes the sum. Weights are not asked: with few samples, distinct neurons look alike. Layers are looked
    at once.
    """

    count: int
    similar: float

    def _recover(
        self, model: nn.Module, example: Any, samples: Tensor | None, original: nn.Module | None, seed: int
    ) -> BaselineResult:
        seen = observe(model, example, samples, self.count, seed)
        tensors, _ = tensor_names(model)
        rewrites, removed = {}, 0
        for space in seen.graph.spaces:
            if space.pins or not space.consumers or space.groups > 1:
                continue
            found = self._eliminate(space, seen, tensors)
            if 0 < found.after < space.width:
                rewrites[space.id] = found
                removed += space.width - found.after
        return BaselineResult(rewrite(model, seen.graph, rewrites), f"removed {removed} neurons")

    def _eliminate(self, space: Space, seen: Observation, tensors: dict[str, Tensor]) -> SpaceRewrite:
        u = seen.summaries(space)
        unread = unread_channels(space, seen.graph, tensors)
        silent = ~(u > 0).any(dim=1)
        direction = unit(u)
        alike = (direction @ direction.T >= self.similar) & ~silent & ~silent[:, None]
        leader = components(space.width, *alike.nonzero(as_tuple=True))
        factors = _factors(space, seen, leader)
        effect = outgoing(space, seen.graph, tensors, leader, factors).effect[leader]
        several = torch.bincount(leader, minlength=space.width)[leader] > 1
        gone = silent | unread | (several & (effect <= CANCELLED))
        return merged(space, leader, gone, factors)


class PartiallyKnowledgeable(_Elimination):
    """Knows the attack and has a few samples (random noise where none are given)."""

    name = "yan-partial"
    count = 8
    similar = 0.999


class Skilled(_Elimination):
    """Has the training distribution: many samples, so neurons must agree closely to be suspicious."""

    name = "yan-skilled"
    needs_samples = True
    count = 512
    similar = 1 - 1e-6


def _factors(space: Space, seen: Observation, leader: Tensor) -> dict[int, Tensor]:
    """By tap that lets a scale pass: how large every channel is beside its leader."""
    found = {}
    for tap in {c.tap for c in space.consumers} - seen.graph.fixed_taps:
        at_tap = seen.summaries(space, tap)
        found[tap] = scale_of(at_tap, at_tap[leader])
    return found


def _silent(summaries: Tensor) -> list[int]:
    found: list[int] = torch.nonzero(~(summaries > 0).any(dim=1)).flatten().tolist()
    return found


class FullyKnowledgeable(Baseline):
    """Has the original model too, and aligns with it.

    Interpreted: every neuron of the suspect is assigned to the original neuron whose activations it resembles most, or
    to none when the correlation is below `similar`, and then it goes. Neurons assigned to one original neuron are
    merged into the one that resembles it most, with the least-squares ratio of activations. Neurons that are silent on
    the samples cannot be told apart: a silent original takes the next silent neuron of the suspect, whichever it is.
    Where nothing resembles an original neuron the defence gives up.
    """

    name = "yan-full"
    needs_original = True
    count = 128
    similar = 0.999

    def _recover(
        self, model: nn.Module, example: Any, samples: Tensor | None, original: nn.Module | None, seed: int
    ) -> BaselineResult:
        assert original is not None, "checked by the caller"
        seen, known = (observe(m, example, samples, self.count, seed) for m in (model, original))
        if not same_spaces(seen, known):
            return BaselineResult(None, "the models have different layers")
        rewrites = {}
        for space, like in zip(seen.graph.spaces, known.graph.spaces, strict=True):
            if space.pins or not space.consumers or space.groups > 1:
                continue
            found = self._assign(space, seen, known.summaries(like))
            if found is None:
                return BaselineResult(None, f"nothing in '{space.name}' resembles some neuron of the original")
            rewrites[space.id] = found
        aligned = rewrite(model, seen.graph, rewrites)
        return BaselineResult(
            rescale(aligned, example, samples, known, self.count, seed), f"aligned {len(rewrites)} spaces"
        )

    def _assign(self, space: Space, seen: Observation, reference: Tensor) -> SpaceRewrite | None:
        given = seen.summaries(space)
        alike = unit(given, centred=True) @ unit(reference, centred=True).T
        best = alike.max(dim=1)
        into = torch.where(best.values >= self.similar, best.indices, -1)
        for channel, silent in zip(_silent(given), _silent(reference), strict=False):
            into[channel] = silent
        if torch.unique(into[into >= 0]).numel() < reference.shape[0]:
            return None
        keep = torch.stack([torch.where(into == k, alike[:, k], -1.0).argmax() for k in range(reference.shape[0])])
        leader = torch.where(into >= 0, keep[into.clamp(min=0)], torch.arange(space.width))
        return SpaceRewrite.merge(keep, into, _factors(space, seen, leader))
