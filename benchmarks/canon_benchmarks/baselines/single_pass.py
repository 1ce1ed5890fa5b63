"""Single-pass recovery: Algorithm 2 of Canon's paper as it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from canon.describe import Coordinates, RowSketch, sketch_rows
from canon.graph import ChannelGraph, Space, trace
from canon.graph.tensors import tensor_names
from canon.recovery import ProbeOptions, Tolerance
from canon.recovery.capture import Capture, capture, make_probes
from canon.recovery.outgoing import outgoing
from canon.recovery.partition import Classes
from canon.recovery.probe import ProbeRefinement
from canon.rewrite import SpaceRewrite, rewrite
from canon_benchmarks.baselines.interface import Baseline, BaselineResult, merged, unread_channels


class SinglePass(Baseline):
    """One pass over the producers in topological order, each judged once, with what is known by then.

    "Why Neural Structural Obfuscation Can't Kill White-Box Watermarks for Good", Algorithm 2. Same probes, signatures,
    proportionality and weight safeguard as our probe method, and no more than the algorithm says: no second look at a
    producer, no optimism about layers that come later, no liveness. A class is dropped only if its columns cancel in
    every row of every consumer, so a dummy that reads a clique without cancelling it keeps it in.

    Interpreted: norms of merged columns count relative to what is added up; a channel that the weights say is zero, and
    that the probes never saw otherwise, is dropped with its columns; producers with groups are left out, as the paper's
    appendix says; a residual merge group is judged by all of its producers together, those that read layers not yet
    visited as they stand.
    """

    name = "single-pass"

    def __init__(self, options: ProbeOptions | None = None) -> None:
        self.options = ProbeOptions() if options is None else options

    def _recover(
        self, model: nn.Module, example: Any, samples: Tensor | None, original: nn.Module | None, seed: int
    ) -> BaselineResult:
        options = self.options
        graph = trace(model, example)
        tensors, _ = tensor_names(model)
        probes = make_probes(example, options.probes, options.batch_size, seed)
        with torch.no_grad():
            judge = _Pass(graph, tensors, Tolerance.for_model(model), capture(model, graph, probes), options)
            rewrites, removed = {}, 0
            for space in graph.spaces:
                if space.pins or space.groups > 1:
                    continue
                found = _decide(space, graph, tensors, judge.once(space), options)
                if 0 < found.after < space.width:
                    rewrites[space.id] = found
                    removed += space.width - found.after
        return BaselineResult(rewrite(model, graph, rewrites), f"removed or merged {removed} channels")


class _Pass(ProbeRefinement):
    """Every space once; what was not visited yet stands as it is."""

    def __init__(
        self,
        graph: ChannelGraph,
        tensors: Mapping[str, Tensor],
        tolerance: Tolerance,
        captured: Mapping[int, Capture],
        options: ProbeOptions,
    ) -> None:
        super().__init__(graph, tensors, tolerance, captured, options)
        self.coordinates = {space.id: Coordinates.plain(space.width) for space in graph.spaces}

    def once(self, space: Space) -> Classes:
        """Judge a space, for good."""
        self._visit(space)
        return self.classes[space.id]

    def _available(self, space: Space) -> dict[int, RowSketch]:
        maps = {producer.map: self.graph.maps[producer.map] for producer in space.producers}
        return {i: sketch_rows(m, self.graph, self.tensors, self.coordinates) for i, m in maps.items()}


def _decide(
    space: Space, graph: ChannelGraph, tensors: Mapping[str, Tensor], classes: Classes, options: ProbeOptions
) -> SpaceRewrite:
    """Drop or merge each class, by its merged outgoing effect."""
    unread = unread_channels(space, graph, tensors)
    everyone = torch.arange(space.width)
    leader = torch.where(classes.null, everyone, classes.leader)
    several = torch.bincount(leader, minlength=space.width)[leader] > 1
    effect = outgoing(space, graph, tensors, leader, classes.factors).effect[leader]
    cancelled = several & (effect <= options.gamma_drop)
    gone = classes.null | cancelled | (unread & ~several if space.consumers else torch.zeros_like(unread))
    return merged(space, leader, gone, classes.factors)
