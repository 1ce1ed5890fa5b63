"""Columns refitted on the suspect's own activations, where the channels that were found do not carry everything.

A channel may be replaced by others that together give it: `f(u) = f(−u) + u`, with `u` from a third and a fourth. Its
mirror image `f(−u)` has its row with the other sign, and what reads the others reads it through them. So rows come from
mirror images, and what readers take from channels that are nobody's is written as what is nearest to it in channels that
were found: least squares, centred, with more samples than channels. All of it is the suspect's, its weights or what it
computes; but it is computed, and no longer its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.containment.extract import space_rewrite
from canon.containment.walk import Found
from canon.graph import ChannelGraph, LinearMap, Segment
from canon.rewrite.tensors import rewrite_rows
from canon.verify.side import movable
from canon.verify.traced import Traced

RIDGE: Final = 1e-9
"""What is added to the squares, relative to their mean."""

SAMPLES: Final = 3
"""Samples for every channel."""

MOST: Final = 2048
"""Random inputs at most."""

BYTES: Final = 1 << 27
"""What they may take."""

BATCH: Final = 64
"""Inputs at a time."""


@dataclass(frozen=True, eq=False)
class Sides:
    """The suspect, and the model that was extracted from it and is changed."""

    suspect: Traced
    extracted: Traced
    found: Mapping[int, Found]
    inputs: tuple[Any, ...]
    """Random ones, as many as a layer may need at most."""


def refit(suspect: Traced, extracted: Traced, found: Mapping[int, Found], example: Any) -> tuple[str, ...]:
    """Refit columns of an extracted model, layer after layer; the names of those that were.

    Args:
        suspect: The suspect, in the owner's form.
        extracted: What was extracted from it; its tensors are changed.
        found: By space: what was found.
        example: An input.
    """
    sides = Sides(suspect, extracted, found, _inputs(suspect, example))
    changed: list[str] = []
    with torch.no_grad():
        for index, linear in enumerate(suspect.graph.maps):
            open_segments = [
                at for at, segment in enumerate(linear.columns or ()) if _carries(found, segment, suspect.graph)
            ]
            if open_segments and linear.groups == 1 and _refit(sides, index, open_segments):
                changed.append(linear.name)
    return tuple(changed)


def _carries(found: Mapping[int, Found], segment: Segment, graph: ChannelGraph) -> bool:
    """Whether channels that are nobody's are read here."""
    if not movable(graph.spaces[segment.space]):
        return False
    return bool((found[segment.space].accepted.match < 0).any())


def _refit(sides: Sides, index: int, chosen: list[int]) -> bool:
    linear, target = sides.suspect.graph.maps[index], sides.extracted.graph.maps[index]
    few = _entering(sides.suspect.model, linear, _some(sides.inputs, slice(2)))
    if few is None:
        return False
    count = 2 + SAMPLES * few.shape[1] // max(1, few.shape[2] * few.shape[0] // 2)
    inputs = _some(sides.inputs, slice(count))
    ours, theirs = (_entering(*side, inputs) for side in ((sides.suspect.model, linear), (sides.extracted.model, target)))
    if ours is None or theirs is None:
        return False
    weight = _rows(sides, linear)
    new = sides.extracted.tensors[target.weight]
    moved = new.movedim((target.row_axis, target.column_axis), (0, 1))
    for at in chosen:
        mine, yours = (linear.columns or ())[at], (target.columns or ())[at]
        surplus = torch.nonzero(sides.found[mine.space].accepted.match < 0).flatten()
        x = _samples(ours, mine)[:, surplus.to(ours.device)]
        fit = _least_squares(x, _samples(theirs, yours))
        if fit is None:
            return False
        columns = weight[:, mine.offset : mine.offset + mine.length]
        columns = columns.reshape(columns.shape[0], mine.length // mine.repeat, -1)[:, surplus.to(columns.device)]
        added = torch.einsum("ouk,ui->oik", columns.double(), fit)
        place = moved[:, yours.offset : yours.offset + yours.length]
        place += added.reshape(place.shape).to(place.dtype)
    return True


def _rows(sides: Sides, linear: LinearMap) -> Tensor:
    """The suspect's weight with the rows of the extracted model, `rows x columns x …`."""
    graph = sides.suspect.graph
    rewrites = {
        segment.space: space_rewrite(graph.spaces[segment.space], sides.found[segment.space])
        for segment in linear.rows
        if movable(graph.spaces[segment.space])
    }
    weight = rewrite_rows(sides.suspect.tensors[linear.weight].detach(), linear.rows, rewrites, linear.row_axis)
    result: Tensor = weight.movedim((linear.row_axis, linear.column_axis), (0, 1))
    return result


def _entering(model: nn.Module, linear: LinearMap, inputs: tuple[Any, ...]) -> Tensor | None:
    """What a layer reads, `inputs x channels x places`; None where it is no module that is called once."""
    module = dict(model.named_modules()).get(linear.weight.removesuffix(".weight"))
    if module is None:
        return None
    seen: list[Tensor] = []
    calls = max((x.shape[0] for x in inputs if isinstance(x, Tensor) and x.ndim), default=1)
    handle = module.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    try:
        for start in range(0, calls, BATCH):
            model(*_some(inputs, slice(start, start + BATCH)))
    finally:
        handle.remove()
    if len(seen) != -(-calls // BATCH):
        return None
    whole = torch.cat(seen)
    return whole.reshape(-1, whole.shape[-1], 1) if isinstance(module, nn.Linear) else whole.flatten(2)


def _samples(values: Tensor, segment: Segment) -> Tensor:
    """`samples x channels` of one segment; places of a flattened map are samples too."""
    part = values[:, segment.offset : segment.offset + segment.length]
    part = part.reshape(part.shape[0], segment.length // segment.repeat, -1)
    return part.transpose(1, 2).flatten(0, 1).double()


def _least_squares(x: Tensor, y: Tensor) -> Tensor | None:
    """`x ≈ y·Bᵀ + b`: `B`, or None where there are too few samples."""
    if x.shape[0] != y.shape[0] or y.shape[0] < 2 * y.shape[1]:
        return None
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    size = y.square().sum(dim=0).sqrt()
    used = size > 1e-12 * size.max()
    scaled = y / torch.where(used, size, torch.inf)
    squares = scaled.T @ scaled
    squares.diagonal().add_(RIDGE)
    fit: Tensor = torch.linalg.solve(squares, scaled.T @ x).T / torch.where(used, size, torch.inf)
    return fit if bool(torch.isfinite(fit).all()) else None


def _inputs(suspect: Traced, example: Any) -> tuple[Any, ...]:
    """Random inputs."""
    given = example if isinstance(example, tuple) else (example,)
    generator = torch.Generator().manual_seed(0)
    first = next(suspect.model.parameters())

    def like(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim == 0:
            return x
        count = min(MOST, max(BATCH, BYTES // max(1, 4 * x[0].numel())))
        drawn = torch.randn((count, *x.shape[1:]), generator=generator, dtype=torch.float32)
        return drawn.to(first.device, first.dtype)

    return tuple(like(x) for x in given)


def _some(inputs: tuple[Any, ...], stretch: slice) -> tuple[Any, ...]:
    return tuple(x[stretch] if isinstance(x, Tensor) and x.ndim else x for x in inputs)
