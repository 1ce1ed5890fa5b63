"""The same operations in another order and under other names."""

from __future__ import annotations

import copy
import operator
import random
from typing import Any

import torch
from torch import Tensor, fx, nn

from canon_benchmarks.thief.editing import add_layer, channels_of, like


def swap_operands(module: fx.GraphModule, chance: random.Random) -> bool:
    """`b + a` for `a + b`."""
    commuting = (operator.add, torch.add, operator.iadd, operator.mul)
    found = [n for n in module.graph.nodes if n.op == "call_function" and n.target in commuting]
    found = [n for n in found if all(isinstance(a, fx.Node) for a in n.args)]
    for node in found:
        node.target = operator.mul if node.target is operator.mul else operator.add
        node.args = tuple(reversed(node.args))
    return bool(found)


def other_order(module: fx.GraphModule, chance: random.Random) -> bool:
    """Another order of execution: nodes as soon as their operands are there, chosen at random."""
    for node in module.graph.nodes:  # what is changed in place has one order only
        if node.op == "call_module":
            layer: Any = module.get_submodule(str(node.target))
            if getattr(layer, "inplace", False):
                layer.inplace = False
        elif node.target is operator.iadd:
            node.target = operator.add
        elif node.kwargs.get("inplace"):
            node.kwargs = {**node.kwargs, "inplace": False}
    nodes = list(module.graph.nodes)
    waiting = {n: len(n.all_input_nodes) for n in nodes}
    ready, graph = [n for n in nodes if not waiting[n]], fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    while ready:
        first = [n for n in ready if n.op == "placeholder"]
        others = [n for n in ready if n.op != "output"]
        node = first[0] if first else chance.choice(others) if others else ready[0]
        ready.remove(node)
        made[node] = graph.node_copy(node, made.__getitem__)
        for user in node.users:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    module.graph = graph
    return True


def rename(module: fx.GraphModule, chance: random.Random) -> bool:
    """Layers under other names."""
    names = {str(n.target) for n in module.graph.nodes if n.op == "call_module"}
    order = sorted(names)
    chance.shuffle(order)
    fresh = {name: f"part{index}" for index, name in enumerate(order)}
    found = {name: module.get_submodule(name) for name in names}
    for child in [name for name, _ in module.named_children()]:
        delattr(module, child)
    for name, layer in found.items():
        module.add_module(fresh[name], layer)
    for node in module.graph.nodes:
        if node.op == "call_module":
            node.target = fresh[str(node.target)]
    return True


def other_join_order(module: fx.GraphModule, chance: random.Random) -> bool:
    """Parts of a concatenation in another order, and with them all that reads them."""
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is not torch.cat or node.args[1:] != (1,):
            continue
        parts = list(node.args[0])
        widths = [channels_of(module, part) for part in parts]
        if len(parts) < 2 or None in widths or not _turn(module, node, torch.arange(sum(widths)), dry=True):  # type: ignore[arg-type]
            continue
        starts = [sum(widths[:i]) for i in range(len(widths))]  # type: ignore[arg-type]
        order = list(range(len(parts)))[::-1]
        _turn(module, node, torch.cat([starts[i] + torch.arange(widths[i]) for i in order]))  # type: ignore[arg-type]
        node.args = ([parts[i] for i in order], 1)
        return True
    return False


def _turn(module: fx.GraphModule, node: fx.Node, order: Tensor, *, dry: bool = False) -> bool:
    """Whoever reads a value reads its channels in another order; False where one of them cannot."""
    for user in list(node.users):
        layer: Any = module.get_submodule(str(user.target)) if user.op == "call_module" else None
        if isinstance(layer, nn.Conv2d) and layer.groups == 1:
            if not dry:
                user.target = add_layer(module, like(layer, layer.weight.detach()[:, order], layer.bias))
            continue
        plain = isinstance(layer, nn.ReLU | nn.MaxPool2d | nn.AvgPool2d | nn.SiLU)
        if isinstance(layer, nn.BatchNorm2d):
            if not dry:
                turned: Any = copy.deepcopy(layer)
                for held in (turned._parameters, turned._buffers):
                    for name, tensor in held.items():
                        if tensor is not None and tensor.ndim:
                            held[name].data = tensor.data[order]
                user.target = add_layer(module, turned)
        elif not plain:
            return False
        if not _turn(module, user, order, dry=dry):
            return False
    return True


REWRITINGS = (swap_operands, other_order, rename, other_join_order)
