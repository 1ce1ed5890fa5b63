"""The extracted model against a layout key: exact figures for its rows, and the key's exact scales.

A key's portrait is coarse, in scales as well. The few exact numbers that the key has for every channel say how far the
extracted model's channels are from the owner's, now that it is known which is which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from canon.containment.found import ROUNDING, Found
from canon.containment.residuals import channels_of
from canon.describe import SKETCH
from canon.graph.experts import channel_tensors
from canon.rewrite import SpaceRewrite, rewrite
from canon.verify.layout import Layout, Step, coordinates, ratios
from canon.verify.precision import coarsest
from canon.verify.projection import project
from canon.verify.side import Description, Side, movable
from canon.verify.traced import Traced

FIGURES_AGREE: Final = 1e-3
"""Median distance of exact figures up to which channels are the owner's, not only like them."""


def compare_exactly(
    extracted: Traced, layout: Layout, found: Mapping[int, Found], *, numbers: int = SKETCH
) -> tuple[Traced, dict[str, Tensor]]:
    """The extracted model in the key's own scales, and by layer how far each row is from the owner's.

    Args:
        extracted: The extracted model, in the owner's layout.
        layout: The key's.
        found: By space: what was found of it.
        numbers: Numbers per row that the layout was made with.
    """
    graph = extracted.graph
    side = Side(graph, layout.tensors(extracted), numbers=numbers, seed=layout.seed)
    # A factor that the weights' own type does not tell from 1 would only round them once more.
    least = max(ROUNDING, torch.finfo(coarsest(extracted.model)).eps / 2)
    distance: dict[int, Tensor] = {}
    scales: dict[int, dict[int, Tensor]] = {}
    for index, step in enumerate(layout.steps):
        space = graph.spaces[step.space]
        measure = partial(_distance, step, layout.numbers, layout.seed + index)
        told = side.like_owner(space, step.maps, measure)
        if space.width != len(step.label):
            distance[space.id] = torch.ones(len(step.label), dtype=torch.float64)  # a head of another task
            continue
        distance[space.id] = measure(told, torch.arange(space.width))
        if movable(space):
            everyone = torch.arange(space.width)
            here = found[space.id].accepted.found
            for tap, ratio in ratios(told.scales, step.scales, everyone).items():
                gap = (ratio - 1).abs()
                scales.setdefault(space.id, {})[tap] = torch.where(here & (gap > least), ratio, 1.0)
            if not step.last:
                named = coordinates(everyone, step.leader, told.scales, step.scales, told.constants)
                side.place(space, named, frozenset(step.scales))
    moves = {}
    for chosen, by_tap in scales.items():
        taps = _meant(found[chosen], distance[chosen])
        gains = {tap: 1 / scale for tap, scale in by_tap.items() if tap in taps and bool((scale != 1).any())}
        if gains:
            moves[chosen] = SpaceRewrite.scaling(graph.spaces[chosen].width, gains)
    if moves:
        model = rewrite(extracted.model, graph, moves)
        extracted = replace(extracted, model=model, tensors=channel_tensors(model, graph.orders))
    confirm(found, distance)
    rows = {
        name: torch.cat([distance[space].repeat_interleave(repeat) for space, repeat in parts])
        for name, parts in channels_of(graph).items()
        if all(space in distance for space, _ in parts)
    }
    return extracted, rows


def _distance(step: Step, numbers: int, seed: int, told: Description, these: Tensor) -> Tensor:
    """How far some channels are from those at their places in a key."""
    features = project(told.features, numbers, seed)
    if features.shape != step.features.shape:
        return torch.ones(len(these), dtype=torch.float64)
    gap: Tensor = torch.linalg.vector_norm(features[these] - step.features[these], dim=1)
    return gap


def count_together(found: Mapping[int, Found]) -> None:
    """Count as distinct what is beyond chance together; while channels are looked for, each speaks for itself.

    Args:
        found: By space: what was found; it is changed.
    """
    for item in found.values():
        accepted = item.accepted
        item.accepted = replace(accepted, distinct=accepted.distinct | (accepted.together & accepted.found))


def confirm(found: Mapping[int, Found], distance: Mapping[int, Tensor]) -> None:
    """Channels whose exact figures agree are distinct: that is no accident, however few numbers they were found by.

    Args:
        found: By space: what was found; it is changed.
        distance: By space: how far each channel of the extracted model is from the owner's.
    """
    for space, item in found.items():
        accepted = item.accepted
        sure = accepted.found & (distance[space] <= FIGURES_AGREE)
        item.accepted = replace(accepted, distinct=accepted.distinct | sure)


def _meant(found: Found, distance: Tensor) -> frozenset[int]:
    """Taps at which the owner's scale means something: the suspect's was changed on purpose, or is the owner's."""
    return frozenset(found.factors) if float(distance.median()) <= FIGURES_AGREE else found.rescaled
