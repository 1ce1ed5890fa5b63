"""Functions spelled in other ways that give the same."""

from __future__ import annotations

import math
import operator
import random
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from canon_benchmarks.thief.editing import add_tensor, instead, layers, relus


def relu_otherwise(module: fx.GraphModule, chance: random.Random) -> bool:
    """ReLU as one of the many things that it is."""
    found = relus(module)
    if not found:
        return False
    node, how = chance.choice(found), chance.randrange(9)
    zero = add_tensor(module, torch.zeros((), dtype=next(module.parameters()).dtype))

    def make(graph: fx.Graph, x: Any) -> fx.Node:
        if how == 0:
            return graph.call_function(torch.clamp, (x,), {"min": 0.0})
        if how == 1:
            return graph.call_function(torch.maximum, (x, graph.get_attr(zero)))
        if how == 2:
            return graph.call_function(functional.threshold, (x, 0.0, 0.0))
        if how == 3:
            return graph.call_function(operator.mul, (x, graph.call_function(operator.gt, (x, 0))))
        if how == 4:
            return graph.call_function(functional.leaky_relu, (x, 0.0))
        if how == 5:
            return graph.call_function(functional.hardtanh, (x, 0.0, math.inf))
        if how == 6:
            both = graph.call_function(operator.add, (x, graph.call_function(torch.abs, (x,))))
            return graph.call_function(operator.truediv, (both, 2))
        if how == 7:
            return graph.call_function(torch.where, (graph.call_function(operator.gt, (x, 0)), x, 0.0))
        return graph.call_method("clamp_min", (x, 0))

    return instead(node, make)


def silu_otherwise(module: fx.GraphModule, chance: random.Random) -> bool:
    """SiLU written out."""
    found = [n for n, _ in layers(module, nn.SiLU)]
    found += [n for n in module.graph.nodes if n.op == "call_function" and n.target is functional.silu]
    if not found:
        return False
    node, how = chance.choice(found), chance.randrange(2)

    def make(graph: fx.Graph, x: Any) -> fx.Node:
        if how == 0:
            return graph.call_function(operator.mul, (graph.call_function(torch.sigmoid, (x,)), x))
        power = graph.call_function(torch.exp, (graph.call_function(torch.neg, (x,)),))
        return graph.call_function(operator.truediv, (x, graph.call_function(operator.add, (power, 1.0))))

    return instead(node, make)


def mean_otherwise(module: fx.GraphModule, chance: random.Random) -> bool:
    """The mean of all positions, axis by axis or by pooling."""
    found = [n for n, p in layers(module, nn.AdaptiveAvgPool2d) if p.output_size in (1, (1, 1))]
    means = [n for n in module.graph.nodes if n.target == "mean" and n.args[1:] in (((2, 3),), ([2, 3],))]
    if not found and not means:
        return False
    node = chance.choice([*found, *means])
    keep = node not in means

    def make(graph: fx.Graph, x: Any) -> fx.Node:
        return graph.call_method("mean", (graph.call_method("mean", (x, 3, keep)), 2, keep))

    return instead(node, make)


REWRITINGS = (relu_otherwise, silu_otherwise, mean_otherwise)
