"""NeuronMap: alignment with the original model by what neurons do on probes."""

from __future__ import annotations

from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from canon.rewrite import SpaceRewrite, rewrite
from canon_benchmarks.baselines.alignment import rescale, same_spaces, unit
from canon_benchmarks.baselines.interface import Baseline, BaselineResult, observe

PROBES = 100
"""As published."""


class NeuronMap(Baseline):
    """Undo permutation and scale by matching each layer's neurons with the original model's.

    Li and Wang, "Linear Functionality Equivalence Attack against Deep Neural Network Watermarks and a Defense Method by
    Neuron Mapping", IEEE TIFS 2023. The published method codes every architecture's layers by hand and assumes that
    both models have the same widths.

    Interpreted: layers are the spaces of our trace, so that residual connections stay consistent; a neuron is its
    summary on 100 probes; neurons are matched by correlation with an optimal assignment; scale is the least-squares
    ratio. Where a layer's width differs the method does not apply, and says so.
    """

    name = "neuron-map"
    needs_original = True

    def _recover(
        self, model: nn.Module, example: Any, samples: Tensor | None, original: nn.Module | None, seed: int
    ) -> BaselineResult:
        assert original is not None, "checked by the caller"
        seen, known = (observe(m, example, samples, PROBES, seed) for m in (model, original))
        if not same_spaces(seen, known):
            return BaselineResult(None, "the models have different layers")
        rewrites = {}
        for space, like in zip(seen.graph.spaces, known.graph.spaces, strict=True):
            if space.width != like.width:
                return BaselineResult(None, f"'{space.name}' has {space.width} channels instead of {like.width}")
            if space.pins or not space.consumers or space.groups > 1:
                continue
            alike = unit(known.summaries(like), centred=True) @ unit(seen.summaries(space), centred=True).T
            _, order = linear_sum_assignment(alike.numpy(), maximize=True)
            rewrites[space.id] = SpaceRewrite.permutation(torch.from_numpy(order).long())
        ordered = rewrite(model, seen.graph, rewrites)
        return BaselineResult(
            rescale(ordered, example, samples, known, PROBES, seed), f"aligned {len(rewrites)} spaces"
        )
