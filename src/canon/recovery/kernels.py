"""Expanded kernels: crop a ring of zeros around every filter, and the padding that made room for it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from canon.graph import ChannelGraph


def crop_kernels(graph: ChannelGraph, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Cropped weights by name, and how many rings went. Only where every filter of a layer has the ring, all zero."""
    cropped: dict[str, Tensor] = {}
    rings: dict[str, int] = {}
    calls: dict[str, tuple[int, ...] | None] = {}
    for linear in graph.maps:
        calls[linear.weight] = linear.cropping
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == "depthwise":
                calls[stage.params["weight"]] = stage.cropping
    for name, padding in calls.items():
        weight = tensors[name]
        if padding is None or weight.ndim < 3:
            continue
        count = 0
        while min(weight.shape[2:]) >= 3 and min(padding) > count and _hollow(weight):
            for axis in range(2, weight.ndim):
                weight = weight.narrow(axis, 1, weight.shape[axis] - 2)
            count += 1
        if count:
            cropped[name] = weight.contiguous()
            rings[name] = count
    return cropped, rings


def _hollow(weight: Tensor) -> bool:
    """Whether the outermost ring of every filter is zero."""
    for axis in range(2, weight.ndim):
        for edge in (0, weight.shape[axis] - 1):
            if bool(weight.select(axis, edge).any()):
                return False
    return True
