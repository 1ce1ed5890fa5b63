"""Columns refitted on the suspect's own activations, where the channels that were found do not carry everything.

A channel may be replaced by others that together give it: `f(u) = f(−u) + u`, with `u` from a third and a fourth. Its
mirror image `f(−u)` has its row with the other sign, and what reads the others reads it through them. So rows come from
mirror images, and what readers take from channels that are nobody's is written as what is nearest to it in channels
that were found: least squares, centred, with more samples than channels. All of it is the suspect's, its weights or
what it computes; but it is computed, and no longer its weights.
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
from canon.graph.probes import drawn_whole
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

EXPLAINED: Final = 0.5
"""Part of what surplus channels add that a fit must give back; otherwise they are something else."""

NOTHING: Final = 1e-5
"""What surplus channels add is nothing if it is this small against what the others do."""

DIRECTIONS: Final = 16
"""Random sums of a layer's outputs that this is measured in."""

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
    if isinstance(example, tuple) and sum(isinstance(x, Tensor) for x in example) > 1:
        return ()  # states and lengths go along with the batch, and more samples cannot be drawn
    sides = Sides(suspect, extracted, found, random_inputs(suspect, example))
    changed: list[str] = []
    with torch.no_grad():
        for index, linear in enumerate(suspect.graph.maps):
            open_segments = [
                at for at, segment in enumerate(linear.columns or ()) if _carries(found, segment, suspect.graph)
            ]
            if not open_segments or linear.groups > 1:
                continue
            explained = _refit(sides, index, open_segments)
            if explained is None:
                continue  # nothing is added here
            if explained < EXPLAINED:
                break  # what follows would be fitted to something else
            changed.append(linear.name)
    return tuple(changed)


def _carries(found: Mapping[int, Found], segment: Segment, graph: ChannelGraph) -> bool:
    """Whether channels that are nobody's are read here."""
    if not movable(graph.spaces[segment.space]):
        return False
    return bool((found[segment.space].accepted.match < 0).any())


def _refit(sides: Sides, index: int, chosen: list[int]) -> float | None:
    """Which part of what surplus channels add to a layer could be refitted; None: they add nothing."""
    linear, target = sides.suspect.graph.maps[index], sides.extracted.graph.maps[index]
    few = entering(sides.suspect.model, linear, some(sides.inputs, slice(2)))
    if few is None:
        return 0.0
    count = 2 + SAMPLES * few.shape[1] // max(1, few.shape[2] * few.shape[0] // 2)
    inputs = some(sides.inputs, slice(count))
    ours, theirs = (
        entering(*side, inputs) for side in ((sides.suspect.model, linear), (sides.extracted.model, target))
    )
    if ours is None or theirs is None:
        return 0.0
    weight = _rows(sides, linear)
    new = sides.extracted.tensors[target.weight]
    moved = new.movedim((target.row_axis, target.column_axis), (0, 1))
    added = left = 0.0
    for at in chosen:
        mine, yours = (linear.columns or ())[at], (target.columns or ())[at]
        surplus = torch.nonzero(sides.found[mine.space].accepted.match < 0).flatten()
        x, y = samples(ours, mine)[:, surplus.to(ours.device)], samples(theirs, yours)
        fit = _least_squares(x, y)
        if fit is None:
            return 0.0
        columns = weight[:, mine.offset : mine.offset + mine.length]
        columns = columns.reshape(columns.shape[0], mine.length // mine.repeat, -1)[:, surplus.to(columns.device)]
        place = moved[:, yours.offset : yours.offset + yours.length]
        whole, rest, size = _contribution(x, y, fit, columns.double(), place)
        if whole <= NOTHING**2 * size:
            continue
        added, left = added + whole, left + rest
        place += torch.einsum("ouk,ui->oik", columns.double(), fit).reshape(place.shape).to(place.dtype)
    return 1 - (left / added) ** 0.5 if added else None


def _contribution(x: Tensor, y: Tensor, fit: Tensor, columns: Tensor, own: Tensor) -> tuple[float, float, float]:
    """What surplus channels add to a layer's outputs, what of it the fit leaves, and what the others add; squared."""
    generator = torch.Generator().manual_seed(0)
    rows, _, kernel = columns.shape
    drawn = torch.randn(rows, kernel, DIRECTIONS, generator=generator, dtype=torch.float64).to(columns.device)
    seen = torch.einsum("ouk,okd->ud", columns, drawn)
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    whole = x @ seen
    rest = whole - y @ (fit.T @ seen)
    others = y @ torch.einsum("ouk,okd->ud", own.reshape(rows, y.shape[1], kernel).double(), drawn)
    return float(whole.square().sum()), float(rest.square().sum()), float(others.square().sum())


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


def entering(model: nn.Module, linear: LinearMap, inputs: tuple[Any, ...]) -> Tensor | None:
    """What a layer reads, `inputs x channels x places`; None where it is no module that is called once."""
    module = dict(model.named_modules()).get(linear.weight.removesuffix(".weight"))
    if module is None:
        return None
    seen: list[Tensor] = []
    calls = max((x.shape[0] for x in inputs if isinstance(x, Tensor) and x.ndim), default=1)
    handle = module.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    try:
        for start in range(0, calls, BATCH):
            model(*some(inputs, slice(start, start + BATCH)))
    finally:
        handle.remove()
    if len(seen) != -(-calls // BATCH):
        return None
    whole = torch.cat(seen)
    return whole.reshape(-1, whole.shape[-1], 1) if isinstance(module, nn.Linear) else whole.flatten(2)


def samples(values: Tensor, segment: Segment) -> Tensor:
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


def random_inputs(suspect: Traced, example: Any) -> tuple[Any, ...]:
    """Random inputs, as many as may be needed."""
    given = example if isinstance(example, tuple) else (example,)
    generator = torch.Generator().manual_seed(0)
    first = next(suspect.model.parameters())

    def like(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.dtype == torch.bool or x.ndim == 0 or not x.numel():
            return x
        count = min(MOST, max(BATCH, BYTES // max(1, 4 * x[0].numel())))
        if not x.is_floating_point():
            return drawn_whole(x, (count, *x.shape[1:]), generator)
        drawn = torch.randn((count, *x.shape[1:]), generator=generator, dtype=torch.float32)
        return drawn.to(first.device, first.dtype)

    return tuple(like(x) for x in given)


def some(inputs: tuple[Any, ...], stretch: slice) -> tuple[Any, ...]:
    """A stretch of the inputs."""
    return tuple(x[stretch] if isinstance(x, Tensor) and x.ndim else x for x in inputs)
