"""Expanded kernels: crop a ring of zeros around every filter, and the padding that made room for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from canon.graph import ChannelGraph


def crop_kernels(
    graph: ChannelGraph, tensors: Mapping[str, Tensor], gone: Mapping[str, int] | None = None
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Cropped weights by name, and how many rings went. Only where every filter of a layer has the ring, all zero.

    Args:
        graph: The channel graph.
        tensors: The tensors by name.
        gone: Rings that are gone already, by weight.
    """
    gone = gone or {}
    calls: dict[str, tuple[int, ...] | None] = {}
    for linear in graph.maps:
        calls[linear.weight] = linear.cropping
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == "depthwise":
                calls[stage.params["weight"]] = stage.cropping
    room = {}
    for name, padding in calls.items():
        size = min(tensors[name].shape[2:], default=0)
        left = 0 if padding is None else min(min(padding) - gone.get(name, 0), (size - 1) // 2)
        if left > 0:
            room[name] = left
    cropped: dict[str, Tensor] = {}
    rings = dict(gone)
    for name, used in _largest({name: tensors[name].detach() for name in room}).items():
        count = 0
        while count < room[name] and _hollow(used, count):
            count += 1
        if count:
            weight = tensors[name].detach()
            for axis in range(2, weight.ndim):
                weight = weight.narrow(axis, count, weight.shape[axis] - 2 * count)
            cropped[name] = weight.contiguous()
            rings[name] = count + gone.get(name, 0)
    return cropped, rings


def _largest(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By weight: the largest magnitude of all filters at each place of the kernel, on the host."""
    # One filter tells most layers apart from expanded ones; only what looks hollow is read as a whole.
    first = _to_host({name: weight[0, 0].abs() for name, weight in weights.items()})
    hollow = {name: weights[name] for name, kernel in first.items() if _hollow(kernel, 0)}
    return _to_host({name: _over_filters(weight) for name, weight in hollow.items()})


def _over_filters(weight: Tensor) -> Tensor:
    """The largest magnitude over all filters, many filters in one row: a reduction over short rows is slow."""
    filters = weight.flatten(0, 1).flatten(1)
    count, size = filters.shape
    many = max(1, min(64, count))
    whole = count // many * many
    largest = filters[:whole].reshape(-1, many * size).abs().amax(dim=0).view(many, size).amax(dim=0)
    if whole < count:
        largest = torch.maximum(largest, filters[whole:].abs().amax(dim=0))
    return largest.view(weight.shape[2:])


def _to_host(kernels: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Small tensors on the host, in one transfer."""
    if not kernels:
        return {}
    flat = torch.cat([kernel.flatten().double() for kernel in kernels.values()]).cpu()
    parts = flat.split([kernel.numel() for kernel in kernels.values()])
    return {name: part.view(kernels[name].shape) for name, part in zip(kernels, parts, strict=True)}


def _hollow(kernel: Tensor, ring: int) -> bool:
    """Whether a kernel is zero along the ring, counted from the outside."""
    for axis in range(kernel.ndim):
        for edge in (ring, kernel.shape[axis] - 1 - ring):
            if bool(kernel.select(axis, edge).any()):
                return False
    return True
