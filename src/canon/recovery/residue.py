"""Biases that are nothing but rounding: what is left where two numbers that cancelled were added up before storing.

A dummy that a norm's shift made null is null no longer once the norm was folded into the layer: its bias is the last
digit of that sum. Beside the layer's other numbers it is zero, and it is judged as zero. Nothing is written from here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from canon.graph import ChannelGraph

MARGIN = 32
"""How many roundings may have added up."""

COARSEST = float(torch.finfo(torch.float32).eps)
"""Norms are folded in float32 or finer. In units of half precision, numbers that are meant would count as rounding."""


def without_residue(graph: ChannelGraph, tensors: Mapping[str, Tensor], rounding: float) -> Mapping[str, Tensor]:
    """The tensors with biases of rounding size set to zero.

    A bias has rounding size if the layer's largest bias, or its largest row, would swallow it.

    Args:
        graph: The channel graph.
        tensors: The model's tensors by first name.
        rounding: The relative precision that numbers are stored in.
    """
    layers = {(linear.bias, linear.weight, linear.row_axis) for linear in graph.maps if linear.bias is not None}
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == "depthwise" and "bias" in stage.params:
                layers.add((stage.params["bias"], stage.params["weight"], stage.axis))
    changed = {}
    for name, weight, axis in sorted(layers):
        bias = tensors[name].detach()
        small = bias.abs()
        rows = torch.linalg.vector_norm(tensors[weight].detach().movedim(axis, 0).flatten(1), dim=1)
        limit = MARGIN * min(rounding, COARSEST) * torch.maximum(small.max(), rows.max().to(small.dtype))
        residue = (small <= limit) & (bias != 0)
        if bool(residue.any()):
            changed[name] = torch.where(residue, torch.zeros_like(bias), bias)
    return {**tensors, **changed} if changed else tensors
