"""Operations that do nothing, put into a program."""

from __future__ import annotations

import copy
import operator
import random
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from canon_benchmarks.thief.editing import add_layer, behind, call, places, relus


def identity_conv(module: fx.GraphModule, chance: random.Random) -> bool:
    """A kernel that gives what it got."""
    node, width = chance.choice(places(module))
    layer = nn.Conv2d(width, width, chance.choice((1, 3)), padding="same", bias=chance.random() < 0.5)
    nn.init.dirac_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    name = add_layer(module, layer.to(next(module.parameters())))
    behind(node, lambda graph: graph.call_module(name, (node,)))
    return True


def identity_depthwise(module: fx.GraphModule, chance: random.Random) -> bool:
    """A depthwise kernel that gives what it got."""
    node, width = chance.choice(places(module))
    layer = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
    nn.init.dirac_(layer.weight, groups=width)
    name = add_layer(module, layer.to(next(module.parameters())))
    behind(node, lambda graph: graph.call_module(name, (node,)))
    return True


def identity_norm(module: fx.GraphModule, chance: random.Random) -> bool:
    """A norm that gives what it got."""
    node, width = chance.choice(places(module))
    name = add_layer(module, nn.BatchNorm2d(width, eps=0.0).to(next(module.parameters())))
    behind(node, lambda graph: graph.call_module(name, (node,)))
    return True


def times_one(module: fx.GraphModule, chance: random.Random) -> bool:
    """Times one, plus zero."""
    for node, _ in chance.sample(places(module), min(3, len(places(module)))):
        ways: Any = ((operator.mul, 1.0), (operator.add, 0.0), (torch.mul, 1), (operator.truediv, 1.0))
        behind(node, partial(_called, node, *chance.choice(ways)))
    return True


def _called(node: fx.Node, function: Any, other: float, graph: fx.Graph) -> fx.Node:
    return graph.call_function(function, (node, other))


def relu_twice(module: fx.GraphModule, chance: random.Random) -> bool:
    """ReLU of ReLU."""
    found = relus(module)
    if not found:
        return False
    node = chance.choice(found)
    behind(node, lambda graph: graph.call_function(torch.relu, (node,)))
    return True


def pool_of_one(module: fx.GraphModule, chance: random.Random) -> bool:
    """Pooling of size one, dropout, no padding."""
    node, _ = chance.choice(places(module))
    name = add_layer(module, chance.choice((nn.MaxPool2d(1, 1), nn.AvgPool2d(1), nn.Dropout(), nn.ZeroPad2d(0))))
    behind(node, lambda graph: graph.call_module(name, (node,)))
    return True


def zero_branch(module: fx.GraphModule, chance: random.Random) -> bool:
    """A branch that adds zero."""
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
    """Two branches that cancel each other."""
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
    """A branch that nothing reads."""
    node, width = chance.choice(places(module))
    name = add_layer(module, nn.Conv2d(width, 7, 1).to(next(module.parameters())))
    with module.graph.inserting_after(node):
        module.graph.call_module(name, (node,))
    return True


def chunk_and_join(module: fx.GraphModule, chance: random.Random) -> bool:
    """Cut apart and joined again."""
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


def scaled_and_back(module: fx.GraphModule, chance: random.Random) -> bool:
    """`relu(x)` as `relu(4·x) / 4`."""
    found = relus(module)
    if not found:
        return False
    node = chance.choice(found)
    source = node.args[0]
    with module.graph.inserting_before(node):
        larger = module.graph.call_function(operator.mul, (source, 4.0))
    node.replace_input_with(source, larger)  # type: ignore[arg-type]
    larger.args = (source, 4.0)
    behind(node, lambda graph: graph.call_function(operator.mul, (node, 0.25)))
    return True


def cast_there_and_back(module: fx.GraphModule, chance: random.Random) -> bool:
    """To another float type and back."""
    node, _ = chance.choice(places(module))
    kind = next(module.parameters()).dtype

    def make(graph: fx.Graph) -> fx.Node:
        fine = graph.call_method("double", (node,))
        with graph.inserting_after(fine):
            return graph.call_method("to", (fine, kind))

    behind(node, make)
    return True


def negated_twice(module: fx.GraphModule, chance: random.Random) -> bool:
    """Minus minus."""
    node, _ = chance.choice(places(module))

    def make(graph: fx.Graph) -> fx.Node:
        return call(graph, once := graph.call_function(torch.neg, (node,)), operator.neg, once)

    behind(node, make)
    return True


def further_output(module: fx.GraphModule, chance: random.Random) -> bool:
    """The network gives one of its features as well."""
    output = next(n for n in module.graph.nodes if n.op == "output")
    if not isinstance(output.args[0], fx.Node):
        return False
    output.args = ((output.args[0], chance.choice(places(module))[0]),)
    return True


REWRITINGS = (
    identity_conv, identity_depthwise, identity_norm, times_one, relu_twice, pool_of_one, zero_branch,
    cancelling_branches, dead_branch, chunk_and_join, nested_sum, scaled_and_back, cast_there_and_back,
    negated_twice, further_output,
)  # fmt: skip
