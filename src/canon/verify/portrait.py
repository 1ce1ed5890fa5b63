"""A portrait: the owner's channels with as many numbers each as it takes to know them again after they were changed.

A layout's features are few and exact: they tell equal channels from others. A portrait's are many and coarse: a row
keeps its direction within some degrees under noise, and thousands of rows are told apart by that. It follows the steps
of the layout. In a key each number takes one byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from canon.graph.mapped import is_mapped, keeper, put_away
from canon.graph.tensors import shape_of
from canon.verify.layout import Layout, Step, coordinates
from canon.verify.shuffled import shuffled_cosine
from canon.verify.side import Part, Side
from canon.verify.traced import Traced

KERNEL: Final = 4
"""Numbers that a key keeps of a direction that is no row, such as a depthwise kernel."""


@dataclass(frozen=True, eq=False)
class Portrait:
    """What is compared when a suspect's channels may have been changed."""

    steps: tuple[Step, ...]
    """The layout's, with whole features."""

    numbers: int
    """Numbers per row."""

    seed: int
    """What rows are projected with."""

    reduced: bool = False
    """Whether short kernels were projected as well, so that the portrait holds nothing of the model itself."""

    signed: bool | None = None
    """Whether some scales have other signs than the layout's, as behind a gate: a key then keeps signs as well. None
    where they do not, so that claims to older keys hold."""

    def features(self, step: Step, features: Tensor, parts: tuple[Part, ...]) -> Tensor:
        """A suspect's features, as this portrait's are."""
        if not self.reduced:
            return features
        if not any(part.numbers == 1 for part in step.parts):
            features, parts = directions(features, parts)
        return shorten(features, parts, self.numbers, self.seed)[0]


def portray(traced: Traced, layout: Layout, numbers: int, seed: int) -> Portrait:
    """The portrait of a model along the steps of its layout."""
    large, keep = any(map(is_mapped, traced.tensors.values())), keeper(traced.tensors)
    side = Side(traced.graph, traced.tensors, numbers=numbers, seed=seed, keep=not large)
    steps = []
    with torch.no_grad():
        for step in layout.steps:
            space = traced.graph.spaces[step.space]
            told = side.describe(space, step.maps)
            scales = {tap: told.scales[tap] for tap in step.scales}
            steps.append(replace(step, features=keep(told.features), scales=scales, parts=told.parts))
            if not step.last:
                everyone = torch.arange(space.width)
                side.place(space, coordinates(everyone, step.leader, scales, scales, told.constants), frozenset(scales))
    return Portrait(with_luck(steps, traced, numbers), numbers, seed)


def with_luck(steps: Sequence[Step], traced: Traced, numbers: int) -> tuple[Step, ...]:
    """Steps that say what rows with the same numbers in other places would reach, all layers of a step together.

    Each counts as much as it does where channels are compared: by the number of ways in which its rows can differ.
    Beside one whose rows say nothing, none is believed.
    """
    maps, tensors = traced.graph.maps, traced.tensors
    alike = [shuffled_cosine(linear, tensors) for linear in maps]
    lengths = [shape_of(tensors, x.weight).numel() / shape_of(tensors, x.weight)[x.row_axis] for x in maps]
    ways = [1 / (1 / length + 1 / numbers) for length in lengths]

    def together(step: Step) -> float:
        total = sum(ways[index] for index in step.maps)
        if any(alike[index] == 1 for index in step.maps):
            return 1.0
        return sum(ways[index] * alike[index] for index in step.maps) / total if total else 0.0

    # As a key file keeps it.
    return tuple(replace(step, shuffled=round(together(step), 4)) for step in steps)


def reduce(portrait: Portrait) -> Portrait:
    """The same as a key keeps it: coarse, and short kernels projected."""
    steps = []
    final = {step.space: index for index, step in enumerate(portrait.steps)}
    for index, step in enumerate(portrait.steps):
        features, parts = step.features, step.parts
        if index < final[step.space] and any(part.numbers > 1 for part in parts):
            features, parts = directions(features, parts)  # the last step of a space says all the rest
        features, parts = shorten(features, parts, portrait.numbers, portrait.seed)
        coarse = unpack(pack(features, parts), parts)
        steps.append(replace(step, features=put_away(coarse) if is_mapped(step.features) else coarse, parts=parts))
    return Portrait(tuple(steps), portrait.numbers, portrait.seed, reduced=True)


def directions(features: Tensor, parts: tuple[Part, ...]) -> tuple[Tensor, tuple[Part, ...]]:
    """Features without single numbers."""
    keep = torch.cat([torch.full((part.columns,), part.numbers > 1) for part in parts])
    return features[:, keep], tuple(part for part in parts if part.numbers > 1)


def shorten(features: Tensor, parts: tuple[Part, ...], numbers: int, seed: int) -> tuple[Tensor, tuple[Part, ...]]:
    """Directions that are no projections yet, such as depthwise kernels, projected to a few numbers."""
    found, changed, start = [], [], 0
    for part in parts:
        columns = features[:, start : start + part.columns]
        start += part.columns
        if part.numbers > KERNEL and part.numbers != numbers:
            table = _table(part.numbers, KERNEL, seed)
            blocks = columns.reshape(-1, part.blocks, part.numbers) @ table
            if part.exact:
                blocks = torch.nn.functional.normalize(blocks, dim=2)
            columns, part = blocks.flatten(1), replace(part, numbers=table.shape[1])
        found.append(columns)
        changed.append(part)
    return torch.cat(found, dim=1) if found else features, tuple(changed)


def _table(given: int, kept: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(given, kept, generator=generator, dtype=torch.float64)
    return drawn.div_(kept**0.5)


def pack(features: Tensor, parts: tuple[Part, ...]) -> list[Tensor]:
    """One byte per number, block by block: directions of any length, single numbers as angles, offsets below 1."""
    found, start = [], 0
    for part in parts:
        columns = features[:, start : start + part.columns]
        start += part.columns
        blocks = columns.reshape(-1, part.blocks, part.numbers).transpose(0, 1)
        if part.numbers == 1:
            whole = (blocks * (128 / math.pi)).round().remainder(256)
            whole = torch.where(whole > 127, whole - 256, whole)
        elif part.exact:
            whole = blocks * (127 / blocks.abs().amax(dim=2, keepdim=True).clamp(min=1e-300)).clamp(max=1e300)
        else:
            whole = blocks * (127 / (1 + torch.linalg.vector_norm(blocks, dim=2, keepdim=True)))
        found += list(whole.round().to(torch.int8))
    return found


def unpack(blocks: Sequence[Tensor], parts: tuple[Part, ...]) -> Tensor:
    """Features again. Single numbers come back within half a turn, and are only looked at on the circle."""
    found, start = [], 0
    for part in parts:
        these = torch.stack(list(blocks[start : start + part.blocks])).double()
        start += part.blocks
        if part.numbers == 1:
            these = these * (math.pi / 128)
        elif part.exact:
            these = torch.nn.functional.normalize(these, dim=2)
        else:
            these = these / 127
            these = these / (1 - torch.linalg.vector_norm(these, dim=2, keepdim=True)).clamp(min=1e-3)
        found.append(these.transpose(0, 1).flatten(1))
    return torch.cat(found, dim=1)
