"""A thief who writes the same network as another program: every rewriting keeps the function."""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

Rewriting = Callable[[fx.GraphModule, random.Random], bool]
"""Changes a graph module in place; False where it finds no place to do so."""


def rewritten(model: nn.Module, names: list[str], seed: int = 0) -> fx.GraphModule:
    """A copy of a model with these rewritings, one after the other; those that find no place are left out."""
    graph_module = fx.symbolic_trace(copy.deepcopy(model)).eval()
    chance = random.Random(seed)
    done = []
    for name in names:
        if REWRITINGS[name](graph_module, chance):
            done.append(name)
        graph_module.graph.lint()
        graph_module.recompile()
    graph_module.meta["done"] = done
    return graph_module.eval()


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
            if isinstance(layer, nn.ReLU | nn.SiLU | nn.MaxPool2d | nn.Identity | nn.ReLU6):
                node = node.args[0]  # type: ignore[assignment]
                continue
        if node.op == "call_function" and node.target in (torch.nn.functional.relu, torch.relu):
            node = node.args[0]  # type: ignore[assignment]
            continue
        return None


def places(module: fx.GraphModule) -> list[tuple[fx.Node, int]]:
    """Image-like values with a known number of channels."""
    found = [(node, channels_of(module, node)) for node in module.graph.nodes if node.op != "output"]
    return [(node, width) for node, width in found if width is not None and node.users and not _written(module, node)]


def _written(module: fx.GraphModule, node: fx.Node) -> bool:
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


def swap_operands(module: fx.GraphModule, chance: random.Random) -> bool:
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


def identity_conv(module: fx.GraphModule, chance: random.Random) -> bool:
    node, width = chance.choice(places(module))
    layer = nn.Conv2d(width, width, chance.choice((1, 3)), padding="same", bias=chance.random() < 0.5)
    nn.init.dirac_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    name = add_layer(module, layer.to(next(module.parameters())))
    behind(node, lambda graph: graph.call_module(name, (node,)))
    return True


def identity_depthwise(module: fx.GraphModule, chance: random.Random) -> bool:
    node, width = chance.choice(places(module))
    layer = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
    nn.init.dirac_(layer.weight, groups=width)
    name = add_layer(module, layer.to(next(module.parameters())))
    behind(node, lambda graph: graph.call_module(name, (node,)))
    return True


def identity_norm(module: fx.GraphModule, chance: random.Random) -> bool:
    node, width = chance.choice(places(module))
    name = add_layer(module, nn.BatchNorm2d(width, eps=0.0).to(next(module.parameters())))
    behind(node, lambda graph: graph.call_module(name, (node,)))
    return True


def times_one(module: fx.GraphModule, chance: random.Random) -> bool:
    for node, _ in chance.sample(places(module), min(3, len(places(module)))):
        ways: Any = ((operator.mul, 1.0), (operator.add, 0.0), (torch.mul, 1), (operator.truediv, 1.0))
        behind(node, partial(_called, node, *chance.choice(ways)))
    return True


def _called(node: fx.Node, function: Any, other: float, graph: fx.Graph) -> fx.Node:
    return graph.call_function(function, (node, other))


def relu_twice(module: fx.GraphModule, chance: random.Random) -> bool:
    found = [n for n, _ in layers(module, nn.ReLU)]
    found += [n for n in module.graph.nodes if n.op == "call_function" and n.target is torch.nn.functional.relu]
    if not found:
        return False
    node = chance.choice(found)
    behind(node, lambda graph: graph.call_function(torch.relu, (node,)))
    return True


def pool_of_one(module: fx.GraphModule, chance: random.Random) -> bool:
    node, _ = chance.choice(places(module))
    name = add_layer(module, chance.choice((nn.MaxPool2d(1, 1), nn.AvgPool2d(1), nn.Dropout(), nn.ZeroPad2d(0))))
    behind(node, lambda graph: graph.call_module(name, (node,)))
    return True


def zero_branch(module: fx.GraphModule, chance: random.Random) -> bool:
    node, width = chance.choice(places(module))
    layer = nn.Conv2d(width, width, 3, padding=1)
    nn.init.zeros_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    name, how = add_layer(module, layer.to(next(module.parameters()))), chance.randrange(3)

    def make(graph: fx.Graph) -> fx.Node:
        if how == 0:
            return call(graph, extra := graph.call_module(name, (node,)), operator.add, extra, node)
        function, operand = (operator.mul, 0.0) if how == 1 else (operator.sub, node)
        other = graph.call_function(function, (node, operand))
        return call(graph, other, operator.add, node, other)

    behind(node, make)
    return True


def cancelling_branches(module: fx.GraphModule, chance: random.Random) -> bool:
    node, width = chance.choice(places(module))
    one = nn.Conv2d(width, width, 3, padding=1).to(next(module.parameters()))
    two = copy.deepcopy(one)
    with torch.no_grad():
        for parameter in two.parameters():
            parameter.neg_()
    names = add_layer(module, one), add_layer(module, two)

    def make(graph: fx.Graph) -> fx.Node:
        first = graph.call_module(names[0], (node,))
        with graph.inserting_after(first):
            second = graph.call_module(names[1], (node,))
        both = call(graph, second, operator.add, first, second)
        return call(graph, both, operator.add, both, node)

    behind(node, make)
    return True


def dead_branch(module: fx.GraphModule, chance: random.Random) -> bool:
    node, width = chance.choice(places(module))
    name = add_layer(module, nn.Conv2d(width, 7, 1).to(next(module.parameters())))
    with module.graph.inserting_after(node):
        module.graph.call_module(name, (node,))
    return True


def conv_as_two(module: fx.GraphModule, chance: random.Random) -> bool:
    """`W` as a convolution to other channels and a 1x1 kernel back, `W = M (M⁻¹ W)`."""
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if c.groups == 1 and c.out_channels <= 512]
    if not found:
        return False
    node, conv = chance.choice(found)
    width = conv.out_channels
    mix = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64))[0]
    weight = torch.einsum("ab,bcij->acij", mix.T, conv.weight.detach().double()).to(conv.weight)
    first = add_layer(module, like(conv, weight, None))
    second = nn.Conv2d(width, width, 1, bias=conv.bias is not None).to(conv.weight)
    second.weight = nn.Parameter(mix.to(conv.weight)[:, :, None, None])
    if conv.bias is not None:
        second.bias = nn.Parameter(conv.bias.detach().clone())
    name = add_layer(module, second)
    node.target = first
    behind(node, lambda graph: graph.call_module(name, (node,)))
    return True


def conv_with_prefix(module: fx.GraphModule, chance: random.Random) -> bool:
    """`W = (W M⁻¹) M`: a 1x1 kernel goes before."""
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if c.groups == 1 and 3 < c.in_channels <= 512]
    if not found:
        return False
    node, conv = chance.choice(found)
    width = conv.in_channels
    mix = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64))[0]
    first = nn.Conv2d(width, width, 1, bias=False).to(conv.weight)
    first.weight = nn.Parameter(mix.to(conv.weight)[:, :, None, None])
    weight = torch.einsum("abij,cb->acij", conv.weight.detach().double(), mix).to(conv.weight)
    name, node.target = add_layer(module, first), add_layer(module, like(conv, weight, conv.bias))
    with module.graph.inserting_before(node):
        node.args = (module.graph.call_module(name, node.args),)
    return True


def conv_as_sum(module: fx.GraphModule, chance: random.Random) -> bool:
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if c.groups == 1]
    node, conv = chance.choice(found)
    part = torch.randn_like(conv.weight) * conv.weight.detach().std()
    one, two = like(conv, part, None), like(conv, conv.weight.detach() - part, conv.bias)
    names = add_layer(module, one), add_layer(module, two)
    node.target = names[0]
    with module.graph.inserting_after(node):
        other = module.graph.call_module(names[1], node.args)
    users = list(node.users)
    both = call(module.graph, other, operator.add, node, other)
    for user in users:
        user.replace_input_with(node, both)
    return True


def dense(module: fx.GraphModule, chance: random.Random) -> bool:
    """Depthwise and grouped convolutions written dense."""
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if c.groups > 1 and c.in_channels <= 256]
    if not found:
        return False
    node, conv = chance.choice(found)
    weight = conv.weight.new_zeros(conv.out_channels, conv.in_channels, *conv.kernel_size)
    rows, columns = conv.out_channels // conv.groups, conv.in_channels // conv.groups
    for group in range(conv.groups):
        inside = slice(group * rows, (group + 1) * rows)
        weight[inside, group * columns : (group + 1) * columns] = conv.weight.detach()[inside]
    node.target = add_layer(module, like(conv, weight, conv.bias, groups=1))
    return True


def grow_kernel(module: fx.GraphModule, chance: random.Random) -> bool:
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if c.dilation == (1, 1) and not isinstance(c.padding, str)]
    node, conv = chance.choice(found)
    weight = nn.functional.pad(conv.weight.detach(), (1, 1, 1, 1))
    node.target = add_layer(module, like(conv, weight, conv.bias, padding=tuple(p + 1 for p in conv.padding)))
    return True


def write_out_dilation(module: fx.GraphModule, chance: random.Random) -> bool:
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if max(c.dilation) > 1]
    if not found:
        return False
    node, conv = chance.choice(found)
    sizes = [(k - 1) * d + 1 for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    weight = conv.weight.new_zeros(*conv.weight.shape[:2], *sizes)
    weight[:, :, :: conv.dilation[0], :: conv.dilation[1]] = conv.weight.detach()
    node.target = add_layer(module, like(conv, weight, conv.bias, dilation=(1, 1)))
    return True


def _factors(norm: Any) -> tuple[Tensor, Tensor]:
    scale = norm.weight.detach() / torch.sqrt(norm.running_var + norm.eps)
    return scale, norm.bias.detach() - norm.running_mean * scale


def norm_as_depthwise(module: fx.GraphModule, chance: random.Random) -> bool:
    found = layers(module, nn.BatchNorm2d)
    if not found:
        return False
    node, norm = chance.choice(found)
    scale, shift = _factors(norm)
    size = chance.choice((1, 3))
    layer = nn.Conv2d(len(scale), len(scale), size, padding=size // 2, groups=len(scale)).to(scale)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:, 0, size // 2, size // 2] = scale
        layer.bias.copy_(shift)  # type: ignore[union-attr]
    node.target = add_layer(module, layer)
    return True


def norm_as_dense(module: fx.GraphModule, chance: random.Random) -> bool:
    found = [(n, m) for n, m in layers(module, nn.BatchNorm2d) if m.num_features <= 512]
    if not found:
        return False
    node, norm = chance.choice(found)
    scale, shift = _factors(norm)
    layer = nn.Conv2d(len(scale), len(scale), 1).to(scale)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(scale)[:, :, None, None])
        layer.bias.copy_(shift)  # type: ignore[union-attr]
    node.target = add_layer(module, layer)
    return True


def norm_as_arithmetic(module: fx.GraphModule, chance: random.Random) -> bool:
    found = layers(module, nn.BatchNorm2d)
    if not found:
        return False
    node, norm = chance.choice(found)
    scale, shift = _factors(norm)
    count = len(list(module.named_buffers()))
    module.register_buffer(f"scale_{count}", scale[:, None, None].clone())
    module.register_buffer(f"shift_{count}", shift[None, :, None, None].clone())
    graph = module.graph
    with graph.inserting_before(node):
        a, b = graph.get_attr(f"scale_{count}"), graph.get_attr(f"shift_{count}")
        product = graph.call_function(operator.mul, (a, node.args[0]))
        total = graph.call_function(torch.add, (product, b))
    node.replace_all_uses_with(total)
    graph.erase_node(node)
    return True


def fold_one_norm(module: fx.GraphModule, chance: random.Random) -> bool:
    found = []
    for node, norm in layers(module, nn.BatchNorm2d):
        before = node.args[0]
        if isinstance(before, fx.Node) and before.op == "call_module" and len(before.users) == 1:
            conv = module.get_submodule(str(before.target))
            if isinstance(conv, nn.Conv2d):
                found.append((before, conv, node, norm))
    if not found:
        return False
    before, conv, node, norm = chance.choice(found)
    scale, shift = _factors(norm)
    bias = shift if conv.bias is None else shift + scale * conv.bias.detach()
    before.target = add_layer(module, like(conv, conv.weight.detach() * scale[:, None, None, None], bias))
    node.replace_all_uses_with(before)
    module.graph.erase_node(node)
    return True


def rename(module: fx.GraphModule, chance: random.Random) -> bool:
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


def chunk_and_join(module: fx.GraphModule, chance: random.Random) -> bool:
    node, width = chance.choice(places(module))

    def make(graph: fx.Graph) -> fx.Node:
        parts = graph.call_function(torch.split, (node, [width // 2, width - width // 2], 1))
        one = call(graph, parts, operator.getitem, parts, 0)
        two = call(graph, one, operator.getitem, parts, 1)
        return call(graph, two, torch.cat, [one, two], 1)

    behind(node, make)
    return True


def nested_sum(module: fx.GraphModule, chance: random.Random) -> bool:
    """`x` as `x/2 + x/2`."""
    node, _ = chance.choice(places(module))

    def make(graph: fx.Graph) -> fx.Node:
        half = graph.call_function(operator.mul, (node, 0.5))
        return call(graph, half, operator.add, half, half)

    behind(node, make)
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


REWRITINGS: dict[str, Rewriting] = {
    function.__name__: function
    for function in (
        swap_operands, other_order, identity_conv, identity_depthwise, identity_norm, times_one, relu_twice,
        pool_of_one, zero_branch, cancelling_branches, dead_branch, conv_as_two, conv_with_prefix, conv_as_sum, dense,
        grow_kernel, write_out_dilation, norm_as_depthwise, norm_as_dense, norm_as_arithmetic, fold_one_norm, rename,
        chunk_and_join, nested_sum, other_join_order,
    )
}  # fmt: skip
