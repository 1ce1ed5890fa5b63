"""Kernels that were grown with zeros: cropped where the layer itself says how, axis by axis.

What a layer's padding, dilation and mode are stands in the module. Entries of zeros at both ends of an axis go together
with the padding that made room for them: as many on either side for padding given as numbers, whatever the mode is;
under `same` also on one side alone, where that leaves the padding before the kernel as it must be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from canon.graph import ChannelGraph

Ends = tuple[int, int]
"""How many entries go at the beginning and at the end of an axis."""


def hollow_kernels(model: nn.Module, graph: ChannelGraph) -> dict[str, list[Ends]]:
    """By name of a layer: entries of its kernel that are zeros for every filter and can go, axis by axis."""
    found = {}
    for name, layer in _convolutions(model, graph):
        ends = [
            _removable(layer, axis, *_zeros(layer.weight.detach(), axis + 2)) for axis in range(layer.weight.ndim - 2)
        ]
        if any(any(pair) for pair in ends):
            found[name] = ends
    return found


def crop(model: nn.Module, kernels: dict[str, list[Ends]]) -> None:
    """Take entries out of kernels, and the padding that goes with them.

    Args:
        model: A model that the caller owns; it is changed.
        kernels: As found by `hollow_kernels`.
    """
    for name, ends in kernels.items():
        layer: Any = model.get_submodule(name)
        weight = layer.weight.detach()
        for axis, (first, last) in enumerate(ends):
            weight = weight.narrow(axis + 2, first, weight.shape[axis + 2] - first - last)
        layer.weight = nn.Parameter(weight.contiguous(), requires_grad=layer.weight.requires_grad)
        layer.kernel_size = tuple(weight.shape[2:])
        if not isinstance(layer.padding, str):
            steps = zip(layer.padding, ends, layer.dilation, strict=True)
            layer.padding = tuple(pad - first * step for pad, (first, _), step in steps)
        layer._reversed_padding_repeated_twice = _padding_as_kept(layer)


def _convolutions(model: nn.Module, graph: ChannelGraph) -> Iterator[tuple[str, Any]]:
    """Convolutions that the graph knows under the name of their module, each used once."""
    layers = [linear.name for linear in graph.maps]
    for space in graph.spaces:
        stages = (s for s in space.stages if s.kind == "depthwise")
        layers += {stage.node: stage.params["weight"].removesuffix(".weight") for stage in stages}.values()
    modules = dict(model.named_modules())
    for name in dict.fromkeys(layers):
        layer = modules.get(name)
        if type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d) and layers.count(name) == 1:
            yield name, layer


def _zeros(weight: Tensor, axis: int) -> Ends:
    """How many slices are zero at the beginning and at the end of an axis."""
    size, one = weight.shape[axis], weight[0, 0]
    if bool(one.select(axis - 2, 0).any()) and bool(one.select(axis - 2, size - 1).any()):
        return 0, 0  # one filter tells most layers apart from expanded ones
    others = [a for a in range(weight.ndim) if a != axis]
    full = torch.nonzero((weight != 0).sum(dim=others)).flatten()
    return (int(full[0]), size - 1 - int(full[-1])) if full.numel() else (0, 0)


def _removable(layer: Any, axis: int, first: int, last: int) -> Ends:
    """How many of the zeros at the ends of an axis can go."""
    size, step = layer.weight.shape[axis + 2], layer.dilation[axis]
    if isinstance(layer.padding, str):
        if layer.padding != "same":
            return 0, 0
        fits = [
            (a, b)
            for a in range(first + 1)
            for b in range(last + 1)
            if step * (size - a - b - 1) // 2 == step * (size - 1) // 2 - a * step
        ]
        return max(fits, key=sum)
    both = min(first, last, layer.padding[axis] // step)
    return both, both


def _padding_as_kept(layer: Any) -> list[int]:
    """What torch keeps for padding modes other than zeros: both sides of every axis, the last axis first."""
    pairs = []
    for axis, size in enumerate(layer.kernel_size):
        if isinstance(layer.padding, str):
            total = layer.dilation[axis] * (size - 1) if layer.padding == "same" else 0
            pairs.append((total // 2, total - total // 2))
        else:
            pairs.append((layer.padding[axis],) * 2)
    return [number for pair in reversed(pairs) for number in pair]
