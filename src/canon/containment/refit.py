"""Columns refitted on the suspect's own activations, where the channels that were found do not carry everything.

What readers take from channels that are nobody's is written as what is nearest to it in channels that were found: least
squares, centred, with more samples than channels. All of it is the suspect's, its weights or what it computes; but it
is computed, and no longer its weights.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.containment.extract import space_rewrite
from canon.containment.found import Found
from canon.graph import ChannelGraph, LinearMap, Segment
from canon.graph.probes import drawn_whole
from canon.rewrite.tensors import row_transform
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
    read: Mapping[str, Tensor]
    """By weight: what layers of the suspect read, for as many inputs as a fit needs."""


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
    chosen: dict[int, list[int]] = {}
    once = called_once(suspect.graph)
    for index, linear in enumerate(suspect.graph.maps):
        here = [at for at, segment in enumerate(linear.columns or ()) if _carries(found, segment, suspect.graph)]
        shuffled = (linear.weight, linear.column_axis) in suspect.graph.orders
        if here and linear.groups == 1 and linear.weight in once and not shuffled:
            chosen[index] = here
    if not chosen:
        return ()
    with torch.no_grad():
        inputs = random_inputs(suspect, example)
        maps = [suspect.graph.maps[index] for index in chosen]
        few = entering(suspect.model, maps, some(inputs, slice(2)))
        counts = {name: 2 + SAMPLES * x.shape[1] // max(1, x.shape[2] * x.shape[0] // 2) for name, x in few.items()}
        if not counts:
            return ()  # none of them is a module, whose inputs could be seen
        inputs = some(inputs, slice(max(counts.values())))
        sides = Sides(suspect, extracted, found, entering(suspect.model, maps, inputs, counts))
        return _in_passing(sides, chosen, inputs)


def _in_passing(sides: Sides, chosen: Mapping[int, list[int]], inputs: tuple[Any, ...]) -> tuple[str, ...]:
    """Refit layers of the extracted model while inputs go through it: each reads what those before it now give."""
    changed: list[str] = []
    left = iter(chosen)
    modules = dict(sides.extracted.model.named_modules())
    handles = []

    def hook(index: int) -> Any:
        def refitted(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            if next(left, None) != index:
                raise _Enough  # one before it is no module
            explained = _refit(sides, index, chosen[index], given[0].detach())
            if explained is None:
                return  # nothing is added here
            if explained < EXPLAINED:
                raise _Enough  # what follows would be fitted to something else
            changed.append(sides.suspect.graph.maps[index].name)

        return refitted

    for index in chosen:
        module = modules.get(_home(sides.extracted.graph.maps[index]))
        if module is not None:
            handles.append(module.register_forward_pre_hook(hook(index)))
    try:
        sides.extracted.model(*inputs)
    except _Enough:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return tuple(changed)


def _carries(found: Mapping[int, Found], segment: Segment, graph: ChannelGraph) -> bool:
    """Whether channels that are nobody's are read here."""
    if not movable(graph.spaces[segment.space]):
        return False
    return bool((found[segment.space].accepted.match < 0).any())


def _refit(sides: Sides, index: int, chosen: list[int], given: Tensor) -> float | None:
    """Which part of what surplus channels add to a layer could be refitted; None: they add nothing."""
    linear, target = sides.suspect.graph.maps[index], sides.extracted.graph.maps[index]
    ours = sides.read.get(linear.weight)
    if ours is None:
        return 0.0
    theirs = _by_place(given, sides.extracted.tensors[target.weight].ndim == 2)[: ours.shape[0]]
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
    weight, rows = sides.suspect.tensors[linear.weight].detach(), row_transform(linear, rewrites)
    weight = weight if rows is None else rows.apply(weight, linear.row_axis)
    return weight.movedim((linear.row_axis, linear.column_axis), (0, 1))


class _Enough(Exception):
    """What comes behind a layer is not needed."""


def called_once(graph: ChannelGraph) -> set[str]:
    """Weights that one call of a layer uses."""
    return {weight for weight, count in Counter(linear.weight for linear in graph.maps).items() if count == 1}


def _home(linear: LinearMap) -> str:
    return linear.weight.removesuffix(".weight")


def _by_place(given: Tensor, flat: bool) -> Tensor:
    return given.reshape(-1, given.shape[-1], 1) if flat else given.flatten(2)


def entering(
    model: nn.Module, maps: Sequence[LinearMap], inputs: tuple[Any, ...], counts: Mapping[str, int] | None = None
) -> dict[str, Tensor]:
    """By weight: what layers read, `inputs x channels x places`; without those that are no module.

    Args:
        model: In evaluation mode.
        maps: Layers that are called once.
        inputs: Run in batches, no further than the last layer.
        counts: By weight: how many inputs are kept; None: all of them.
    """
    modules = dict(model.named_modules())
    found = {linear.weight: modules[_home(linear)] for linear in maps if _home(linear) in modules}
    seen: dict[str, list[Tensor]] = {name: [] for name in found}
    calls = max((x.shape[0] for x in inputs if isinstance(x, Tensor) and x.ndim), default=1)
    wanted = {name: calls if counts is None else min(calls, counts.get(name, 0)) for name in found}
    waiting: set[str] = set()

    def hook(name: str) -> Any:
        def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            if start < wanted[name]:
                each = max(1, len(given[0]) // min(BATCH, calls - start))  # a router's rows are those of all positions
                seen[name].append(given[0].detach()[: (wanted[name] - start) * each].clone())
            waiting.discard(name)
            if not waiting:
                raise _Enough

        return keep

    handles = [module.register_forward_pre_hook(hook(name)) for name, module in found.items()]
    try:
        for start in range(0, max(wanted.values(), default=0), BATCH):
            waiting = {name for name, count in wanted.items() if start < count}
            with contextlib.suppress(_Enough):
                model(*some(inputs, slice(start, start + BATCH)))
    finally:
        for handle in handles:
            handle.remove()
    return {name: _by_place(torch.cat(parts), found[name].weight.ndim == 2) for name, parts in seen.items() if parts}


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
