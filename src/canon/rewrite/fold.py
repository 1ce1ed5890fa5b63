"""Norms folded into the layers before them, as exporters and deployment tools do.

In evaluation mode a batch norm is `a·x + b` per channel. A convolution or linear layer that nothing else reads can take
it up: rows times `a`, bias `a·bias + b`. A norm behind a sum, a concatenation or an activation stays.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.graph import ChannelGraph, Stage, trace
from canon.graph.tensors import meta_clone, tensor_names
from canon.rewrite.surgery import replace_tensors
from canon.rewrite.weights import fold_norm

LAYERS: Final[Mapping[type[nn.Module], type[nn.Module]]] = {
    nn.Linear: nn.BatchNorm1d,
    nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d,
    nn.ConvTranspose1d: nn.BatchNorm1d, nn.ConvTranspose2d: nn.BatchNorm2d, nn.ConvTranspose3d: nn.BatchNorm3d,
}  # fmt: skip
"""Layers that take up a norm, and the norm that goes behind them."""

NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class FoldableNorm:
    """A norm that the layer before it can take up."""

    norm: str
    """The norm's name."""

    layer: str
    """The layer before it, of which it is the only reader."""

    bias: bool
    """Whether that layer has a bias of its own."""

    affine: bool
    """Whether the norm has a weight and a bias."""


@dataclass(frozen=True, eq=False)
class Folded:
    """A model without the norms that its layers could take up."""

    model: nn.Module
    """Computes what the given model does."""

    norms: tuple[FoldableNorm, ...]
    """What was folded, in execution order."""


def fold_norms(model: nn.Module, example: Tensor | tuple[Any, ...], *, layers: Collection[str] | None = None) -> Folded:
    """Fold every batch norm that directly follows a convolution or linear layer into it.

    Layers and norms that are used more than once, that something else reads, or that carry hooks stay as they are. The
    norm's place is taken by `nn.Identity`.

    Args:
        model: In evaluation mode. It is not changed.
        example: An input tensor or tuple of inputs.
        layers: Only norms behind these layers; None: all.
    """
    graph = trace(model, example)
    found = [n for n in foldable_norms(model, graph, example) if layers is None or n.layer in layers]
    tensors, _ = tensor_names(model)
    axes = _row_axes(graph)
    changed: dict[str, Tensor] = {}
    biases: dict[str, Tensor] = {}
    with torch.no_grad():
        for pair in found:
            norm: Any = model.get_submodule(pair.norm)
            weight, old = tensors[f"{pair.layer}.weight"], tensors.get(f"{pair.layer}.bias")
            changed[f"{pair.layer}.weight"], biases[pair.layer] = fold_norm(
                weight, old, axes[pair.layer], norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps
            )
            if old is not None:
                changed[f"{pair.layer}.bias"] = biases[pair.layer]
    result = replace_tensors(model, changed)
    for pair in found:
        layer: Any = result.get_submodule(pair.layer)
        if layer.bias is None:
            layer.bias = nn.Parameter(biases[pair.layer], requires_grad=layer.weight.requires_grad)
        result.set_submodule(pair.norm, nn.Identity().eval())
    return Folded(result, tuple(found))


def foldable_norms(
    model: nn.Module, graph: ChannelGraph, example: Tensor | tuple[Any, ...]
) -> tuple[FoldableNorm, ...]:
    """The norms of a traced model that `fold_norms` would fold, in execution order."""
    found = norms_behind_layers(model, graph)
    called = _called(model, example, found) if found else Counter()
    return tuple(n for n in found if called[n.norm] == 1 and called[n.layer] == 1)


def norms_behind_layers(model: nn.Module, graph: ChannelGraph) -> tuple[FoldableNorm, ...]:
    """As `foldable_norms`, whether the forward pass calls layer and norm themselves or only uses their tensors."""
    makers, readers, used = _makers(graph), readers_of(graph), uses_of(graph)
    modules = dict(model.named_modules())
    registered = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    roles = {"weight": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    found = []
    for node, stages in _stages(graph, "norm").items():
        params = stages[0].params
        layer = makers.get(tuple((s.inputs[0], s.offset, s.repeat) for s in stages))
        norm = params["mean"].rpartition(".")[0]
        shuffled = (params["mean"], 0) in graph.orders  # its channels stand otherwise than the layer's
        if layer is None or shuffled or any(readers[s.inputs[0]] != {node} for s in stages):
            continue
        first, second = modules.get(layer), modules.get(norm)
        once = all(used[name] <= 1 for name in (*params.values(), f"{layer}.weight", f"{layer}.bias"))
        once &= registered[id(first)] == registered[id(second)] == 1
        own = all(name == f"{norm}.{roles[role]}" for role, name in params.items())
        if once and own and type(first) in LAYERS and type(second) in NORMS:
            found.append(FoldableNorm(norm, layer, f"{layer}.bias" in graph.aliases, "weight" in params))
    return tuple(found)


Maker = tuple[tuple[int, int, int], ...]
"""Points, offsets and repeats that an output axis is made of."""


def _makers(graph: ChannelGraph) -> dict[Maker, str]:
    """Layers by the axis that they make; a depthwise convolution makes one too."""
    found = {tuple((s.point, s.offset, s.repeat) for s in linear.rows): linear.name for linear in graph.maps}
    for stages in _stages(graph, "depthwise").values():
        name = stages[0].params["weight"].removesuffix(".weight")
        found[tuple((s.output, s.offset, s.repeat) for s in stages)] = name
    return found


def _stages(graph: ChannelGraph, kind: str) -> dict[str, list[Stage]]:
    """Stages of one kind by node, in the order of the axis: one node may go over several spaces."""
    found: dict[str, list[Stage]] = defaultdict(list)
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == kind:
                found[stage.node].append(stage)
    return {node: sorted(stages, key=lambda stage: stage.offset) for node, stages in found.items()}


def readers_of(graph: ChannelGraph) -> dict[int, set[str]]:
    """By point: the nodes that read it. What is not understood pins, and so counts as a reader."""
    found: dict[int, set[str]] = defaultdict(set)
    for space in graph.spaces:
        for stage in space.stages:
            for point in stage.inputs:
                found[point].add(stage.node)
        for consumer in space.consumers:
            found[consumer.point].add(graph.maps[consumer.map].node)
        for pin in space.pins:
            for point in pin.points:
                found[point].add(f"{pin.node}: {pin.reason}")
    return found


def uses_of(graph: ChannelGraph) -> Counter[str]:
    """How many nodes use a tensor."""
    found = {(linear.node, name) for linear in graph.maps for name in (linear.weight, linear.bias) if name}
    for space in graph.spaces:
        found |= {(stage.node, name) for stage in space.stages for name in stage.params.values()}
    return Counter(name for _, name in found)


def _called(model: nn.Module, example: Tensor | tuple[Any, ...], norms: Sequence[FoldableNorm]) -> Counter[str]:
    """How often the forward pass calls the layers and norms themselves, and not only uses their tensors."""
    clone = meta_clone(model)
    found: Counter[str] = Counter()
    for name in {name for pair in norms for name in (pair.norm, pair.layer)}:
        clone.get_submodule(name).register_forward_hook(lambda *_, name=name: found.update([name]))
    given = example if isinstance(example, tuple) else (example,)
    try:
        with torch.no_grad():
            clone(*(x.to("meta") if isinstance(x, Tensor) else x for x in given))
    except Exception:
        return Counter()
    return found


def _row_axes(graph: ChannelGraph) -> dict[str, int]:
    axes = {linear.name: linear.row_axis for linear in graph.maps}
    for stages in _stages(graph, "depthwise").values():
        stage = stages[0]
        axes[stage.params["weight"].removesuffix(".weight")] = stage.axis
    return axes
