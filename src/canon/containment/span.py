"""The span test: are the owner's activations linear images of the suspect's?

Rows that were replaced, or mixed into another linear basis, have no counterpart to be found. What they compute is still
there: at the point where a layer reads a space, each of the owner's channels is a linear image of the suspect's. It is
fitted on one half of some random inputs and measured on the other, next to what a stranger reaches: the suspect's own
network with the entries of every tensor shuffled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.containment.location import Span
from canon.containment.refit import called_once, entering, random_inputs, samples, some
from canon.graph import ChannelGraph, Space
from canon.graph.inputs import fitting
from canon.graph.tensors import tensor_names
from canon.rewrite import replace_tensors
from canon.verify.traced import Traced

SPANNED: Final = 0.02
"""Residual, relative to the channel's own changes, up to which a channel is a linear image."""

APART: Final = 0.2
"""It must also be smaller than a stranger's by this factor."""

SAMPLES: Final = 4
"""Samples for every channel of the suspect's, over both halves."""

INPUTS: Final = 256
"""Random inputs at most; a space that needs more is left out."""

SPACES: Final = 8
"""Spaces that are looked at, spread over the network."""

RIDGE: Final = 1e-8
"""What is added to the squares, relative to each channel's own."""


def spans(suspect: Traced, owner: Traced, spaces: Iterable[int], example: Any) -> tuple[Span, ...]:
    """Which of the owner's channels are linear images of what the suspect computes, space by space.

    Args:
        suspect: The suspect, in the owner's form.
        owner: The owner's model.
        spaces: The spaces to look at.
        example: An input.
    """
    inputs = some(random_inputs(suspect, example), slice(INPUTS))
    asked = list(spaces)
    asked = [asked[at * len(asked) // min(SPACES, len(asked))] for at in range(min(SPACES, len(asked)))]
    stranger = _shuffled(suspect)
    found = []
    with torch.no_grad():
        for index in asked:
            values = _values((suspect.model, owner.model, stranger), (suspect.graph, owner.graph), index, inputs)
            if values is None:
                continue
            mine, yours, other = values
            near, far = _residuals(mine, yours), _residuals(other, yours)
            if near is None or far is None:
                continue
            chance = float(far.median())
            spanned = near <= min(SPANNED, APART * chance)
            name, median = owner.graph.spaces[index].name, float(near.median())
            found.append(Span(name, near.numel(), int(spanned.sum()), median, chance))
    return tuple(found)


def _shuffled(suspect: Traced) -> nn.Module:
    """A stranger as wide as the suspect, with numbers of the same sizes."""
    generator = torch.Generator().manual_seed(1)
    tensors, _ = tensor_names(suspect.model)
    changed = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.ndim > 1:
            order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
            changed[name] = tensor.detach().flatten()[order].view(tensor.shape)
    return replace_tensors(suspect.model, changed)


def _values(
    models: tuple[nn.Module, nn.Module, nn.Module], graphs: tuple[ChannelGraph, ChannelGraph], index: int, inputs: Any
) -> list[Tensor] | None:
    """What suspect, owner and stranger compute where a layer reads a space; None where that cannot be seen."""
    readers = [_reader(graph.spaces[index], graph) for graph in graphs]
    if readers[0] is None or readers[1] is None:
        return None
    (mine, here), (yours, there) = readers[0], readers[1]
    few = entering(models[0], [mine], some(inputs, slice(2))).get(mine.weight)
    if few is None:
        return None
    count = 2 + SAMPLES * here.length // max(1, here.repeat * few.shape[2] * few.shape[0] // 2)
    chosen = some(inputs, slice(count))
    plan = ((models[0], mine, here), (models[1], yours, there), (models[2], mine, here))
    found = []
    for model, linear, segment in plan:
        read = entering(model, [linear], fitting(chosen, model)).get(linear.weight)
        if read is None:
            return None
        found.append(samples(read, segment))
    return found


def _reader(space: Space, graph: ChannelGraph) -> Any:
    """A layer that reads a space, and where."""
    once = called_once(graph) - {name for name, _ in graph.orders}
    for consumer in space.consumers:
        linear = graph.maps[consumer.map]
        for segment in linear.columns or ():
            if segment.space == space.id and linear.groups == 1 and linear.weight in once:
                return linear, segment
    return None


def _residuals(x: Tensor, y: Tensor) -> Tensor | None:
    """For every column of `y` what a linear image of `x` leaves of it on samples that it was not fitted to."""
    half = x.shape[0] // 2
    if x.shape[0] != y.shape[0] or half < 1.5 * x.shape[1]:
        return None
    order = torch.randperm(x.shape[0], generator=torch.Generator().manual_seed(2)).to(x.device)
    x, y = x[order], y[order]
    centre_x, centre_y = x[:half].mean(dim=0), y[:half].mean(dim=0)
    a, b = x[:half] - centre_x, y[:half] - centre_y
    size = a.square().sum(dim=0).sqrt()
    scale = torch.where(size > 1e-12 * size.max(), size, torch.inf)
    a = a / scale
    squares = a.T @ a
    squares.diagonal().add_(RIDGE)
    fit = torch.linalg.solve(squares, a.T @ b)
    rest = (y[half:] - centre_y) - ((x[half:] - centre_x) / scale) @ fit
    whole = (y[half:] - y[half:].mean(dim=0)).square().sum(dim=0).sqrt()
    changing = whole > 1e-12 * whole.max()
    left: Tensor = rest.square().sum(dim=0).sqrt()[changing] / whole[changing]
    return left if left.numel() else None
