"""Layers written as other layers that compute the same."""

from __future__ import annotations

import operator
import random
from typing import Any

import torch
from torch import fx, nn

from canon_benchmarks.thief.editing import (
    add_layer,
    add_tensor,
    behind,
    call,
    channels_of,
    factors,
    instead,
    layers,
    like,
)


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
    """One convolution as the sum of two."""
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
    """A ring of zeros."""
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if c.dilation == (1, 1) and not isinstance(c.padding, str)]
    node, conv = chance.choice(found)
    weight = nn.functional.pad(conv.weight.detach(), (1, 1, 1, 1))
    node.target = add_layer(module, like(conv, weight, conv.bias, padding=tuple(p + 1 for p in conv.padding)))
    return True


def write_out_dilation(module: fx.GraphModule, chance: random.Random) -> bool:
    """Gaps of a dilated kernel written as zeros."""
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if max(c.dilation) > 1]
    if not found:
        return False
    node, conv = chance.choice(found)
    sizes = [(k - 1) * d + 1 for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    weight = conv.weight.new_zeros(*conv.weight.shape[:2], *sizes)
    weight[:, :, :: conv.dilation[0], :: conv.dilation[1]] = conv.weight.detach()
    node.target = add_layer(module, like(conv, weight, conv.bias, dilation=(1, 1)))
    return True


def norm_as_depthwise(module: fx.GraphModule, chance: random.Random) -> bool:
    """A norm as a depthwise kernel."""
    found = layers(module, nn.BatchNorm2d)
    if not found:
        return False
    node, norm = chance.choice(found)
    scale, shift = factors(norm)
    size = chance.choice((1, 3))
    layer = nn.Conv2d(len(scale), len(scale), size, padding=size // 2, groups=len(scale)).to(scale)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:, 0, size // 2, size // 2] = scale
        layer.bias.copy_(shift)  # type: ignore[union-attr]
    node.target = add_layer(module, layer)
    return True


def norm_as_dense(module: fx.GraphModule, chance: random.Random) -> bool:
    """A norm as a dense kernel."""
    found = [(n, m) for n, m in layers(module, nn.BatchNorm2d) if m.num_features <= 512]
    if not found:
        return False
    node, norm = chance.choice(found)
    scale, shift = factors(norm)
    layer = nn.Conv2d(len(scale), len(scale), 1).to(scale)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(scale)[:, :, None, None])
        layer.bias.copy_(shift)  # type: ignore[union-attr]
    node.target = add_layer(module, layer)
    return True


def norm_as_arithmetic(module: fx.GraphModule, chance: random.Random) -> bool:
    """A norm as a product and a sum."""
    found = layers(module, nn.BatchNorm2d)
    if not found:
        return False
    node, norm = chance.choice(found)
    scale, shift = factors(norm)
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
    """A norm folded into the layer before it."""
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
    scale, shift = factors(norm)
    bias = shift if conv.bias is None else shift + scale * conv.bias.detach()
    before.target = add_layer(module, like(conv, conv.weight.detach() * scale[:, None, None, None], bias))
    node.replace_all_uses_with(before)
    module.graph.erase_node(node)
    return True


def conv_as_function(module: fx.GraphModule, chance: random.Random) -> bool:
    """`F.conv2d` with a weight that is stored the other way around."""
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if c.padding_mode == "zeros"]
    node, conv = chance.choice(found)
    weight = add_tensor(module, conv.weight.detach().permute(3, 1, 2, 0).contiguous())
    bias = None if conv.bias is None else add_tensor(module, conv.bias)

    def make(graph: fx.Graph, x: Any) -> fx.Node:
        turned = graph.call_method("permute", (graph.get_attr(weight), 3, 1, 2, 0))
        held = None if bias is None else graph.get_attr(bias)
        settings = (conv.stride, conv.padding, conv.dilation, conv.groups)
        return graph.call_function(torch.nn.functional.conv2d, (x, turned, held, *settings))

    return instead(node, make)


def norm_as_function(module: fx.GraphModule, chance: random.Random) -> bool:
    """`F.batch_norm`."""
    found = layers(module, nn.BatchNorm2d)
    if not found:
        return False
    node, norm = chance.choice(found)
    names = [add_tensor(module, t) for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)]

    def make(graph: fx.Graph, x: Any) -> fx.Node:
        held = [graph.get_attr(name) for name in names]
        return graph.call_function(torch.nn.functional.batch_norm, (x, *held), {"training": False, "eps": norm.eps})

    return instead(node, make)


def linear_as_product(module: fx.GraphModule, chance: random.Random) -> bool:
    """`x @ Wᵀ + b`, in one of several spellings."""
    found = [(n, c) for n, c in layers(module, nn.Linear) if c.bias is not None]
    if not found:
        return False
    node, layer = chance.choice(found)
    weight, bias, how = add_tensor(module, layer.weight.t()), add_tensor(module, layer.bias), chance.randrange(3)

    def make(graph: fx.Graph, x: Any) -> fx.Node:
        held, shift = graph.get_attr(weight), graph.get_attr(bias)
        if how == 0:
            return graph.call_function(torch.addmm, (shift, x, held))
        if how == 1:
            return graph.call_function(torch.nn.functional.linear, (x, graph.call_method("t", (held,)), shift))
        return graph.call_function(operator.add, (graph.call_function(operator.matmul, (x, held)), shift))

    return instead(node, make)


def conv_as_unfold(module: fx.GraphModule, chance: random.Random) -> bool:
    """Windows laid out side by side, and one product with all of them."""
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if c.groups == 1 and not isinstance(c.padding, str)]
    if not found:
        return False
    node, conv = chance.choice(found)
    weight = add_tensor(module, conv.weight)
    bias = None if conv.bias is None else add_tensor(module, conv.bias[:, None, None])

    def make(graph: fx.Graph, x: Any) -> fx.Node:
        flat = graph.call_method("flatten", (graph.get_attr(weight), 1))
        settings = (conv.kernel_size, conv.dilation, conv.padding, conv.stride)
        windows = graph.call_function(torch.nn.functional.unfold, (x, *settings))
        product = graph.call_function(torch.matmul, (flat, windows))
        sides = []
        for axis, (k, d, p, s) in enumerate(zip(*settings, strict=True)):
            size = graph.call_method("size", (x, 2 + axis))
            reach = graph.call_function(operator.add, (size, 2 * p - d * (k - 1) - 1 + s))
            sides.append(graph.call_function(operator.floordiv, (reach, s)))
        shaped = graph.call_method("unflatten", (product, 2, tuple(sides)))
        return shaped if bias is None else graph.call_function(operator.add, (shaped, graph.get_attr(bias)))

    return instead(node, make)


def pool_as_conv(module: fx.GraphModule, chance: random.Random) -> bool:
    """Average pooling as a depthwise kernel."""
    found = [(n, p) for n, p in layers(module, nn.AvgPool2d) if not p.ceil_mode and p.divisor_override is None]
    wide = [(n, p, channels_of(module, n.args[0])) for n, p in found if isinstance(n.args[0], fx.Node)]
    chosen = [(n, p, width) for n, p, width in wide if width is not None]
    if not chosen:
        return False
    node, pool, width = chance.choice(chosen)
    layer = nn.Conv2d(
        width, width, pool.kernel_size, pool.stride, pool.padding, groups=width, bias=False
    ).to(next(module.parameters()))  # fmt: skip
    nn.init.constant_(layer.weight, 1 / layer.weight[0].numel())
    node.target = add_layer(module, layer)
    return True


def sum_as_conv(module: fx.GraphModule, chance: random.Random) -> bool:
    """`x + y` as a concatenation and a 1x1 kernel."""
    adds = [n for n in module.graph.nodes if n.target in (operator.add, torch.add) and len(n.args) == 2]
    found = []
    for node in adds:
        widths = [channels_of(module, a) if isinstance(a, fx.Node) else None for a in node.args]
        if widths[0] is not None and widths[0] == widths[1] and node.args[0] is not node.args[1]:
            found.append((node, widths[0]))
    if not found:
        return False
    node, width = chance.choice(found)
    layer = nn.Conv2d(2 * width, width, 1, bias=False).to(next(module.parameters()))
    unit = torch.eye(width)
    layer.weight = nn.Parameter(torch.cat([unit, unit], 1)[:, :, None, None].to(layer.weight))
    name = add_layer(module, layer)
    with module.graph.inserting_before(node):
        joined = module.graph.call_function(torch.cat, (list(node.args), 1))
        made = module.graph.call_module(name, (joined,))
    node.replace_all_uses_with(made)
    module.graph.erase_node(node)
    return True


def conv_by_outputs(module: fx.GraphModule, chance: random.Random) -> bool:
    """One convolution as two, whose channels stand side by side."""
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if c.groups == 1 and c.out_channels > 1]
    if not found:
        return False
    node, conv = chance.choice(found)
    cut = conv.out_channels // 2
    parts = [
        like(conv, conv.weight.detach()[at], None if conv.bias is None else conv.bias.detach()[at])
        for at in (slice(cut), slice(cut, None))
    ]
    names = [add_layer(module, part) for part in parts]
    return instead(
        node, lambda graph, x: graph.call_function(torch.cat, ([graph.call_module(name, (x,)) for name in names], 1))
    )


def subsampled_conv(module: fx.GraphModule, chance: random.Random) -> bool:
    """A stride as an operation of its own."""
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if max(c.stride) > 1]
    if not found:
        return False
    node, conv = chance.choice(found)
    name, how = add_layer(module, like(conv, conv.weight, conv.bias, stride=(1, 1))), chance.randrange(2)

    def make(graph: fx.Graph, x: Any) -> fx.Node:
        whole = graph.call_module(name, (x,))
        if how == 0:
            return graph.call_function(torch.nn.functional.max_pool2d, (whole, 1, conv.stride))
        every = tuple(slice(None, None, step) for step in conv.stride)
        return graph.call_function(operator.getitem, (whole, (slice(None), slice(None), *every)))

    return instead(node, make)


def bias_apart(module: fx.GraphModule, chance: random.Random) -> bool:
    """A bias as an operation of its own."""
    found = [(n, c) for n, c in layers(module, nn.Conv2d) if c.bias is not None]
    if not found:
        return False
    node, conv = chance.choice(found)
    name, bias = add_layer(module, like(conv, conv.weight, None)), add_tensor(module, conv.bias[None, :, None, None])
    return instead(
        node,
        lambda graph, x: graph.call_function(torch.add, (graph.call_module(name, (x,)), graph.get_attr(bias))),
    )


REWRITINGS = (
    conv_as_two, conv_with_prefix, conv_as_sum, dense, grow_kernel, write_out_dilation, norm_as_depthwise,
    norm_as_dense, norm_as_arithmetic, fold_one_norm, conv_as_function, norm_as_function, linear_as_product,
    conv_as_unfold, pool_as_conv, sum_as_conv, conv_by_outputs, subsampled_conv, bias_apart,
)  # fmt: skip
