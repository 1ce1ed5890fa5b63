"""Kernels that were grown with zeros: which layers may lose what nothing uses, and the last look at all of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from torch import Tensor, nn

from canon.graph import ChannelGraph
from canon.rewrite.kernels import Ends, Kernel, cropped

PIECE: Final = 1 << 18
"""Numbers that are looked at together."""


def convolutions(model: nn.Module, graph: ChannelGraph) -> dict[str, Any]:
    """By weight: the convolutions that alone use theirs, under the name of their module."""
    users: dict[str, set[str]] = defaultdict(set)
    for linear in graph.maps:
        users[linear.weight].add(linear.name)
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == "depthwise":
                weight = stage.params["weight"]
                users[weight].add(weight.removesuffix(".weight"))
    modules = dict(model.named_modules())
    found = {f"{name}.weight": modules.get(name) for names in users.values() if len(names) == 1 for name in names}
    plain = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return {name: layer for name, layer in found.items() if name in users and type(layer) in plain}


def removable(kernel: Kernel, weight: Tensor) -> tuple[Ends, ...]:
    """Entries of kernels that are zeros for every filter and can go, axis by axis; empty: there are none."""
    one = weight[0, 0] != 0
    if bool(one.any()) and not kernel.removable(one):
        return ()  # one filter tells most layers apart from grown ones
    return kernel.removable(_used_places(weight))


def crop(layer: Any) -> bool:
    """Take what is zeros everywhere out of a layer's kernels, and the padding that goes with it; False: nothing is."""
    kernel, weight = Kernel.of(layer), layer.weight
    ends = removable(kernel, weight.detach())
    if ends:
        layer.weight = nn.Parameter(cropped(weight.detach(), ends), requires_grad=weight.requires_grad)
        kernel.without(ends).settle(layer)
    return bool(ends)


def _used_places(weight: Tensor) -> Tensor:
    """Which places of a kernel some filter uses; a product is faster than a reduction over rows as short as these."""
    filters = weight.flatten(2).flatten(0, 1)
    total = filters.new_zeros(filters.shape[1])
    for piece in filters.split(max(1, PIECE // filters.shape[1])):
        total += piece.new_ones(len(piece)) @ piece.abs()
    return total.view(weight.shape[2:]) != 0
