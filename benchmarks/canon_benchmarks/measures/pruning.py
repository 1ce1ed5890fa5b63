"""Torch-Pruning as a yardstick: it is told which channels to remove, and removes them.

That is less than recovery does: it decides nothing, merges no column and checks nothing. Its tracing counts, as ours
does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from canon.errors import import_extra
from canon.graph import ChannelGraph
from canon.recovery import RecoveryReport


def removed_channels(graph: ChannelGraph, report: RecoveryReport) -> dict[str, list[int]]:
    """By layer that makes a space: the channels that recovery took out of it."""
    found = {}
    for space, told in zip(graph.spaces, report.spaces, strict=True):
        if told.before != told.after and told.outcomes:
            last, origin = told.outcomes[-1]
            gone = torch.ones(told.before, dtype=torch.bool)
            gone[origin[last.kept]] = False
            layer = graph.maps[space.producers[0].map].name
            found[layer] = torch.nonzero(gone).flatten().tolist()
    return found


def import_pruning() -> Any:
    """Torch-Pruning, where it is installed."""
    return import_extra("torch_pruning", "bench", "torch-pruning")


def prune(model: nn.Module, example: Tensor, removed: Mapping[str, list[int]]) -> nn.Module:
    """Remove channels with Torch-Pruning. The model is changed.

    Args:
        model: The attacked model; its parameters must want gradients, which Torch-Pruning traces with.
        example: An input.
        removed: By layer, its output channels to remove.
    """
    torch_pruning = import_pruning()
    graph = torch_pruning.DependencyGraph().build_dependency(model, example_inputs=example)
    for name, channels in removed.items():
        layer = model.get_submodule(name)
        how = (
            torch_pruning.prune_linear_out_channels
            if isinstance(layer, nn.Linear)
            else torch_pruning.prune_conv_out_channels
        )
        graph.get_pruning_group(layer, how, idxs=channels).prune()
    return model
