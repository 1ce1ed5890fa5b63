"""Layers whose kernels may become smaller."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import nn

from canon.graph import ChannelGraph
from canon.graph.tensors import layers_of


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
    modules = layers_of(model)
    found = {f"{name}.weight": modules.get(name) for names in users.values() if len(names) == 1 for name in names}
    plain = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return {name: layer for name, layer in found.items() if name in users and type(layer) in plain}
