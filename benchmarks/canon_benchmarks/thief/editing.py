"""Programs of torch.fx edited in place: what rewritings share."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn


def layers(module: fx.GraphModule, *kinds: type[nn.Module]) -> list[tuple[fx.Node, Any]]:
    """Calls of layers of some kinds."""
    found = []
    for node in module.graph.nodes:
        if node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), kinds):
            found.append((node, module.get_submodule(str(node.target))))
    return found


def add_layer(module: fx.GraphModule, layer: nn.Module) -> str:
    """Register a layer under a fresh name."""
    name = f"extra_{len(dict(module.named_children()))}"
    module.add_module(name, layer.eval())
    return name


def channels_of(module: fx.GraphModule, node: fx.Node) -> int | None:
    """Channels of a value, where the layer that makes it says so."""
    while True:
        if node.op == "call_module":
            layer: Any = module.get_submodule(str(node.target))
            if isinstance(layer, nn.Conv2d):
                return int(layer.out_channels)
            if isinstance(layer, nn.BatchNorm2d):
                return int(layer.num_features)
            if isinstance(layer, nn.ReLU | nn.SiLU | nn.MaxPool2d | nn.AvgPool2d | nn.Identity | nn.ReLU6):
                node = node.args[0]  # type: ignore[assignment]
                continue
        if node.op == "call_function" and node.target in (torch.nn.functional.relu, torch.relu):
            node = node.args[0]  # type: ignore[assignment]
            continue
        return None


def places(module: fx.GraphModule) -> list[tuple[fx.Node, int]]:
    """Image-like values with a known number of channels."""
    found = [(node, channels_of(module, node)) for node in module.graph.nodes if node.op != "output"]
    return [(node, width) for node, width in found if width is not None and node.users and not written(module, node)]


def written(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether somebody changes this value in place: a new reader would see another value."""
    for user in node.users:
        if user.op == "call_module" and getattr(module.get_submodule(str(user.target)), "inplace", False):
            return True
        if user.target is operator.iadd or user.kwargs.get("inplace"):
            return True
    return False


def behind(node: fx.Node, make: Callable[[fx.Graph], fx.Node]) -> fx.Node:
    """Put something between a value and all who read it."""
    users = list(node.users)
    with node.graph.inserting_after(node):
        made = make(node.graph)
    for user in users:
        user.replace_input_with(node, made)
    return made


def call(graph: fx.Graph, after: fx.Node, function: Any, *args: Any) -> fx.Node:
    """A function call right behind a node."""
    with graph.inserting_after(after):
        return graph.call_function(function, args)


def like(conv: nn.Conv2d, weight: Tensor, bias: Tensor | None, **changed: Any) -> nn.Conv2d:
    """A convolution with another weight."""
    groups = changed.get("groups", conv.groups)
    settings = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation, "groups": groups, **changed}
    size: Any = tuple(weight.shape[2:])
    made = nn.Conv2d(weight.shape[1] * groups, weight.shape[0], size, bias=bias is not None, **settings)
    made.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone())
    return made.eval()


def factors(norm: Any) -> tuple[Tensor, Tensor]:
    """Scale and shift of a norm."""
    scale = norm.weight.detach() / torch.sqrt(norm.running_var + norm.eps)
    return scale, norm.bias.detach() - norm.running_mean * scale


def add_tensor(module: fx.GraphModule, tensor: Tensor) -> str:
    """Register a tensor under a fresh name."""
    name = f"held_{len(dict(module.named_buffers(recurse=False)))}"
    module.register_buffer(name, tensor.detach().clone())
    return name


def relus(module: fx.GraphModule) -> list[fx.Node]:
    """Calls of ReLU."""
    found = [n for n, _ in layers(module, nn.ReLU)]
    plain = (torch.nn.functional.relu, torch.relu)
    return found + [n for n in module.graph.nodes if n.op == "call_function" and n.target in plain]


def instead(node: fx.Node, make: Callable[[fx.Graph, Any], fx.Node]) -> bool:
    """Put something in the place of a call with one operand."""
    with node.graph.inserting_before(node):
        made = make(node.graph, node.args[0])
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    return True
