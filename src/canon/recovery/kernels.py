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
    rings = dict(gone or {})
    room = {name: padding - rings.get(name, 0) for name, padding in room_for_cropping(graph).items()}
    weights = {name: tensors[name].detach() for name, padding in room.items() if padding > 0}
    cropped: dict[str, Tensor] = {}
    for name, count in _hollow_rings(weights, room).items():
        cropped[name] = _cropped(weights[name], count)
        rings[name] = rings.get(name, 0) + count
    return cropped, rings


def crop_one(weight: Tensor, room: int) -> tuple[Tensor, int]:
    """One weight without its rings of zeros, at most `room`, and how many went."""
    count = _hollow_rings({"": weight}, {"": room}).get("", 0) if room > 0 else 0
    return (_cropped(weight, count), count) if count else (weight, 0)


def room_for_cropping(graph: ChannelGraph) -> dict[str, int]:
    """By weight of a convolution: how many rings of padding could go."""
    padding: dict[str, tuple[int, ...] | None] = {linear.weight: linear.cropping for linear in graph.maps}
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == "depthwise":
                padding[stage.params["weight"]] = stage.cropping
    return {name: min(sides) for name, sides in padding.items() if sides and min(sides) > 0}


def _cropped(weight: Tensor, count: int) -> Tensor:
    for axis in range(2, weight.ndim):
        weight = weight.narrow(axis, count, weight.shape[axis] - 2 * count)
    return weight.contiguous()


def _hollow_rings(weights: Mapping[str, Tensor], room: Mapping[str, int]) -> dict[str, int]:
    """By weight that has any: rings of zeros that all its filters share."""
    wide = {name: weight for name, weight in weights.items() if min(weight.shape[2:], default=0) >= 3}
    # One filter tells most layers apart from expanded ones; only what looks hollow is read as a whole.
    first = _to_host({name: weight[0, 0].abs() for name, weight in wide.items()})
    hollow = {name: wide[name] for name, kernel in first.items() if _hollow(kernel, 0)}
    found = {}
    for name, kernel in _to_host({name: _over_filters(weight) for name, weight in hollow.items()}).items():
        most, count = min(room[name], (min(kernel.shape) - 1) // 2), 0
        while count < most and _hollow(kernel, count):
            count += 1
        if count:
            found[name] = count
    return found


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
