"""Means as they are spelled in other programs, and what a call is."""

from __future__ import annotations

from typing import Any, Final

import torch

from canon.normal.nodes import Affine, Graph, Node

WHOLE: Final = ("mean of positions",)
POINTWISE: Final = tuple(
    "relu clamp silu sigmoid tanh gelu hardswish hardsigmoid leaky_relu elu celu selu mish softplus softsign abs neg "
    "exp log sqrt rsqrt square erf".split()
)
"""Functions that treat every number by itself."""


def spell_means(graph: Graph) -> list[str]:
    """Means over one axis after the other are one mean."""
    said = []
    for node in graph.order:
        source = _averaged(node)
        if source is not None:
            graph.replace(node, Node("call", [source], WHOLE, name=node.name, shape=node.shape))
            said.append(f"'{node.name}' is a mean of positions, written in another way")
    return said


def sink_scales(graph: Graph) -> list[str]:
    """A number that one factor of a product is multiplied by is one of the product."""
    for node in graph.order:
        inputs = [graph.resolve(n) for n in node.inputs]
        for at, factor in enumerate(inputs):
            if called(node, "matmul", "bmm") and factor.kind == "affine" and _is_number(factor.value):
                inside = [*inputs[:at], factor.inputs[0], *inputs[at + 1 :]]
                made = Node("call", inside, node.label, name=node.name, shape=node.shape)
                graph.replace(node, Node("affine", [made], value=factor.value, name=factor.name, shape=node.shape))
                break
    return []


def _is_number(value: Affine) -> bool:
    return not value.sources and value.scale.numel() == 1 and not bool(value.shift.any())


def scaled(node: Node, factor: float) -> Node:
    """A value times a number."""
    scale = torch.tensor(float(factor), dtype=torch.float64)
    return Node("affine", [node], value=Affine(scale, torch.zeros_like(scale)), name=node.name, shape=node.shape)


def called(node: Node, *names: str) -> bool:
    """Whether a value is made by a call of one of these functions."""
    return node.kind == "call" and isinstance(node.label, tuple) and node.label[0] in names


def _averaged(node: Node) -> Node | None:
    """What a mean of all positions is taken of, in two steps."""
    if not node.inputs or not called(node.inputs[0], "mean over"):
        return None
    inner = node.inputs[0]
    source = inner.inputs[0]
    label: Any = inner.label
    (_, axes, keeps), mine = label, node.label
    rank = len(source.shape)
    if node.label == WHOLE and not keeps and min(axes) >= 2:
        return source
    if not called(node, "mean over") or not isinstance(mine, tuple) or mine[2] != keeps:
        return None
    left = list(range(rank)) if keeps else [axis for axis in range(rank) if axis not in axes]
    both = tuple(sorted({*axes, *(left[axis] for axis in mine[1])}))
    if both != tuple(range(2, rank)):
        return None
    return source if keeps else None
