"""Layers that do nothing: identity kernels, norms that are `x · 1 + 0`, and branches that add zero.

What does nothing is the normal form's knowledge (`canon.normal`). Layers that were put in and disguised then are found
once channels are compact and in order (`passes/straighten`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from canon.graph import ChannelGraph, LinearMap, Space
from canon.graph.tensors import layers_of
from canon.normal.lower import does_nothing
from canon.rewrite import replace_tensors


def idle_layers(model: nn.Module, graph: ChannelGraph, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Names of the layers that give what they get, or that can be left out because nothing comes of them."""
    unused = _unused(graph, tensors)
    modules = [(name, module) for name, module in layers_of(model).items() if name]
    return tuple(name for name, module in modules if name in unused or does_nothing(module))


def without(model: nn.Module, names: Iterable[str]) -> nn.Module:
    """A copy in which the identity stands for some layers, and zero for those that give nothing else."""
    lean = replace_tensors(model, {})
    for name in names:
        parent, _, own = name.rpartition(".")
        weight = getattr(lean.get_submodule(name), "weight", None)
        silent = weight is not None and not bool(weight.any())
        setattr(lean.get_submodule(parent), own, Zero() if silent else nn.Identity())
    return lean


class Zero(nn.Module):
    """Gives zero, whatever it gets: what is added to it stays as it is."""

    def forward(self, x: Tensor) -> Tensor:
        """A number that any tensor can be added to."""
        return x.new_zeros(())


def _unused(graph: ChannelGraph, tensors: Mapping[str, Tensor]) -> set[str]:
    """Layers of branches that add zero: those that give it, and all that nothing but these read."""
    silent = {index for index, linear in enumerate(graph.maps) if _adds_zero(linear, graph, tensors)}
    if not silent:
        return set()
    while True:  # a layer all of whose readers are useless is useless
        useless = {s.id for s in graph.spaces if s.consumers and not s.pins and {c.map for c in s.consumers} <= silent}
        more = {i for i, m in enumerate(graph.maps) if all(s.space in useless for s in m.rows)} - silent
        if not more:
            break
        silent |= more
    names = {graph.maps[index].name for index in silent}
    params = [name for space in graph.spaces if space.id in useless for s in space.stages for name in s.params.values()]
    return names | {name.rpartition(".")[0] for name in params}


def _adds_zero(linear: LinearMap, graph: ChannelGraph, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a layer gives zero, and that is added to something else at once."""
    if bool(tensors[linear.weight][0].any()) or not all(
        _only_added(graph.spaces[s.space], s.point) for s in linear.rows
    ):
        return False  # one row tells nearly all layers
    return not any(bool(tensors[name].any()) for name in (linear.weight, linear.bias) if name is not None)


def _only_added(space: Space, point: int) -> bool:
    readers = [stage.kind for stage in space.stages if point in stage.inputs]
    return readers == ["add"] and all(consumer.point != point for consumer in space.consumers) and not space.pins
