"""The probe method: redundancy inferred from activations, confirmed by the weights.

The model runs on a fixed set of probes. Every channel gets a summary and a state bit per probe, where the layers behind
read it. Channels with the same state bits and proportional summaries are candidates; a candidate stands if the weights
agree, in the coordinates of what was merged before it. Exact weight duplicates join, whatever the probes say of them.

Spaces are visited in topological order. One pass would do for a chain of layers; a residual connection makes a space
depend on layers that come later, so a space is visited again when something that feeds it has split. Classes only
split, and a second visit is rare and costs a sketch, so the work to a fixpoint costs little more than the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from canon.describe import Array, RowSketch, Signature, cluster
from canon.errors import RecoveryError
from canon.graph import ChannelGraph, Space
from canon.recovery.capture import Capture, capture, make_probes
from canon.recovery.outgoing import outgoing
from canon.recovery.partition import Classes, Refinement
from canon.recovery.proportion import Limits, candidates, components, median_ratio
from canon.recovery.tolerance import Tolerance

DUPLICATE = 64
"""Signatures this many roundings apart are exact duplicates."""


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """The parameters of the probe method.

    The paper names them and publishes no values. These defaults are ours: they separate duplicates from distinct
    channels on the networks of the test suite, and the rounding of float32 stays far below them.
    """

    probes: int = 256
    """T: how many probes. With fewer, activations alone miss more of the duplicates in trained networks; with more,
    they find no more of them (`canon bench run probe_count`)."""

    batch_size: int = 32
    """Probes per forward pass; changes memory and time, not the result."""

    epsilon: float = 1e-3
    """ε: a probe counts for a channel if its summary is above this part of the channel's largest."""

    t_min: int = 4
    """T_min: how many probes must count before a ratio is trusted."""

    tau: float = 2e-3
    """τ: largest relative error of proportional summaries."""

    gamma_drop: float = 1e-4
    """γ_drop: a class is a clique if at every layer its columns add up to at most this, relative to all of them."""

    gamma_keep: float = 1e-3
    """γ_keep: a class carries a signal, and is merged, if at some layer its columns add up to more than this. A class
    between the two is neither for sure, and is left alone."""

    active_ratio: tuple[float, float] = (0.05, 1.0)
    """Channels active on a smaller or larger share of the probes are left alone. A mean over positions is hardly ever
    zero, so most channels of a convolution are always on; by default only those that are off are kept out."""

    weight_tolerance: float | None = None
    """Largest disagreement of folded, scale-free rows in one class; None: as the weights' precision demands."""

    seed: int = 0
    """Seed of the probes."""

    def __post_init__(self) -> None:
        if self.probes < 1 or self.batch_size < 1 or self.t_min < 1:
            raise RecoveryError(
                f"probes, batch_size and t_min must be at least 1, got {self.probes}, {self.batch_size}, {self.t_min}"
            )
        if not 0 <= self.epsilon < 1 or not 0 <= self.tau < 1:
            raise RecoveryError(f"epsilon and tau must be in [0, 1), got {self.epsilon} and {self.tau}")
        if not 0 <= self.gamma_drop <= self.gamma_keep:
            raise RecoveryError(
                f"gamma_drop must not exceed gamma_keep, got {self.gamma_drop} and {self.gamma_keep}",
                hint="What lies between them is left alone",
            )
        low, high = self.active_ratio
        if not 0 <= low <= high <= 1:
            raise RecoveryError(f"active_ratio must be two shares in order, got {low} and {high}")

    @property
    def limits(self) -> Limits:
        """When summaries count as proportional."""
        return Limits(self.epsilon, self.t_min, self.tau, self.active_ratio)


def probe_classes(
    model: nn.Module,
    example: Tensor | tuple[Any, ...],
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    tolerance: Tolerance,
    options: ProbeOptions,
    progress: Callable[[int, int], None] | None = None,
) -> dict[int, Classes]:
    """The classes of every space, by the probe method."""
    probes = make_probes(example, options.probes, options.batch_size, options.seed)
    captured = capture(model, graph, probes)
    if options.weight_tolerance is not None:
        tolerance = replace(tolerance, equal=options.weight_tolerance)
    found = ProbeRefinement(graph, tensors, tolerance, captured, options, progress).run()
    return {space.id: decide(space, graph, tensors, found[space.id], options) for space in graph.spaces}


class ProbeRefinement(Refinement):
    """Refinement that starts from what the probes suggest instead of from everything being equal."""

    def __init__(
        self,
        graph: ChannelGraph,
        tensors: Mapping[str, Tensor],
        tolerance: Tolerance,
        captured: Mapping[int, Capture],
        options: ProbeOptions,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__(graph, tensors, tolerance, progress)
        self.captured, self.options = captured, options
        self.suggested: dict[int, Tensor] = {}

    def suggestion(self, space: Space) -> Tensor:
        """The candidates of a space, from activations alone."""
        if space.id not in self.suggested:
            points = [self.captured[p].summaries for p in dict.fromkeys(c.point for c in space.consumers)]
            found = candidates(points, self.options.limits) if points else torch.arange(space.width)
            self.suggested[space.id] = found
        return self.suggested[space.id]

    def _group(self, space: Space, signature: Signature, label: Array) -> Array:
        width = space.width
        suggested = cluster(signature, label * width + self.suggestion(space).numpy(), self.tolerance.equal)
        exact = min(DUPLICATE * self.tolerance.rounding, self.tolerance.equal)
        duplicates = cluster(signature, label, exact)
        everyone, found = torch.arange(width), torch.from_numpy(np.concatenate([suggested, duplicates]))
        return components(width, torch.cat([everyone, everyone]), found).numpy()

    def _judge(self, space: Space, sketches: Mapping[int, RowSketch], old: Classes | None) -> Classes:
        classes = super()._judge(space, sketches, old)
        quiet, steady = self._stillness(space)
        classes = replace(classes, null=classes.null & quiet)
        unsteady = torch.zeros(space.width, dtype=torch.bool)
        unsteady[classes.leader[classes.constant & ~steady]] = True
        if bool(unsteady.any()):
            restless = unsteady[classes.leader]
            classes = separate(replace(classes, constant=classes.constant & ~restless), restless)
        return self._measure(space, classes)

    def _stillness(self, space: Space) -> tuple[Tensor, Tensor]:
        """Channels that the probes saw at zero only, and those seen at one value only, wherever they are read."""
        quiet = torch.ones(space.width, dtype=torch.bool)
        steady = quiet.clone()
        for point in {c.point for c in space.consumers}:
            seen = self.captured[point]
            quiet &= torch.maximum(seen.low.abs(), seen.high.abs()) <= self.options.tau
            steady &= seen.high - seen.low <= self.options.tau
        return quiet, steady

    def _measure(self, space: Space, classes: Classes) -> Classes:
        """Take the factors of candidates from the probes; candidates whose weights name another factor part."""
        suggestion, leader = self.suggestion(space), classes.leader
        everyone = torch.arange(space.width)
        members = everyone[(leader != everyone) & (suggestion == suggestion[leader]) & ~classes.constant]
        if not members.numel():
            return classes
        factors, spread = dict(classes.factors), classes.spread.clone()
        apart = torch.zeros(space.width, dtype=torch.bool)
        for tap in {c.tap for c in space.consumers}:
            points = dict.fromkeys(c.point for c in space.consumers if c.tap == tap)
            summaries = torch.cat([self.captured[p].summaries for p in points], dim=1)
            measured = median_ratio(summaries, leader[members], members, self.options.epsilon)
            by_weight = factors.get(tap, torch.ones(space.width, dtype=torch.float64))[members]
            measured = torch.where(measured.isfinite(), measured, by_weight)
            gap = (measured / by_weight - 1).abs()
            apart[members[gap > self.options.tau + self.tolerance.equal]] = True
            spread[members] = torch.maximum(spread[members], gap)
            if tap not in self.graph.fixed_taps:
                factor = factors.get(tap, torch.ones(space.width, dtype=torch.float64)).clone()
                factor[members] = measured
                factors[tap] = factor
        return separate(replace(classes, factors=factors, spread=spread), apart)


def decide(
    space: Space, graph: ChannelGraph, tensors: Mapping[str, Tensor], classes: Classes, options: ProbeOptions
) -> Classes:
    """Drop, merge or leave alone, by the merged outgoing effect at every layer that reads the space.

    A class to drop stays a class: its columns add up to zero, within what its spread is said to be here.
    """
    if space.pins:
        return classes
    found = outgoing(space, graph, tensors, torch.where(classes.null, torch.arange(space.width), classes.leader),
                     classes.factors)  # fmt: skip
    effect = found.effect[classes.leader]
    several = torch.bincount(classes.leader, minlength=space.width)[classes.leader] > 1
    drop = several & (effect <= options.gamma_drop)
    unsure = several & ~drop & (effect <= options.gamma_keep)
    # Reduction takes a sum for zero up to eight times the spread.
    left = found.rows[classes.leader].clamp(max=options.gamma_drop) / 8
    spread = torch.where(drop, torch.maximum(classes.spread, left), classes.spread)
    return separate(replace(classes, spread=spread), unsure)


def separate(classes: Classes, channels: Tensor) -> Classes:
    """These channels lead classes of their own."""
    if not bool(channels.any()):
        return classes
    own = torch.arange(channels.numel())
    ones = torch.ones(channels.numel(), dtype=torch.float64)
    return replace(
        classes,
        leader=torch.where(channels, own, classes.leader),
        factors={tap: torch.where(channels, ones, factor) for tap, factor in classes.factors.items()},
        spread=torch.where(channels, torch.zeros_like(ones), classes.spread),
    )
