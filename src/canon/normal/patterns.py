"""Functions that were written out: ReLU, sigmoid, SiLU and means as they are spelled in other programs."""

from __future__ import annotations

from typing import Any, Final

import torch

from canon.normal.nodes import Affine, Graph, Node

QUOTIENTS: Final = ("truediv", "div", "divide")
WHOLE: Final = ("mean of positions",)


def spell_functions(graph: Graph) -> list[str]:
    """Every function that can be said in one word."""
    said = []
    for node in graph.order:
        for pattern in (_relu, _sigmoid, _silu, _mean):
            found = pattern(graph, node)
            if found is not None:
                source, label, factor = found
                made = Node("call", [source], label, name=node.name, shape=node.shape)
                if factor != 1:
                    made = scaled(made, factor)
                graph.replace(node, made)
                said.append(f"'{node.name}' is {label[0]}, written in another way")
                break
    return said


def scaled(node: Node, factor: float) -> Node:
    """A value times a number."""
    scale = torch.tensor(float(factor), dtype=torch.float64)
    return Node("affine", [node], value=Affine(scale, torch.zeros_like(scale)), name=node.name, shape=node.shape)


def called(node: Node, *names: str) -> bool:
    """Whether a value is made by a call of one of these functions."""
    return node.kind == "call" and isinstance(node.label, tuple) and node.label[0] in names


def _arguments(node: Node) -> Any:
    """Operands of a call without a spelling of its own, values as dots."""
    label: Any = node.label
    plain = isinstance(label, tuple) and len(label) == 2 and isinstance(label[1], tuple) and len(label[1]) == 3
    return label[1][1][1:] if plain and label[1][2] == ("{",) else None


def _positive(node: Node, source: Node) -> bool:
    """`source > 0`."""
    return called(node, "gt") and node.inputs == [source] and _arguments(node) == ("·", 0)


def _affine(node: Node, scale: float, shift: float) -> bool:
    value = node.value
    if node.kind != "affine" or value.sources or value.scale.ndim or value.scale.is_meta:
        return False
    return float(value.scale) == scale and float(value.shift) == shift


def _relu(graph: Graph, node: Node) -> tuple[Node, Any, float] | None:
    if node.kind == "product" and len(node.inputs) == 2:
        for x, gate in (node.inputs, reversed(node.inputs)):
            if _positive(gate, x):
                return x, ("relu",), 1
    if called(node, "where") and len(node.inputs) == 2 and _arguments(node) == ("·", "·", 0):
        gate, x = node.inputs
        return (x, ("relu",), 1) if _positive(gate, x) else None
    if node.kind == "sum" and len(node.inputs) == 2 and node.value[0] == node.value[1] > 0:
        for x, size in (node.inputs, reversed(node.inputs)):
            if called(size, "abs") and size.inputs == [x]:
                return x, ("relu",), 2 * node.value[0]
    return None


def _one_and_power(node: Node) -> Node | None:
    """The `x` of `1 + exp(-x)`."""
    if not _affine(node, 1, 1) or not called(node.inputs[0], "exp"):
        return None
    negative = node.inputs[0].inputs[0]
    return negative.inputs[0] if _affine(negative, -1, 0) else None


def _sigmoid(graph: Graph, node: Node) -> tuple[Node, Any, float] | None:
    if called(node, *QUOTIENTS) and len(node.inputs) == 1 and _arguments(node) == (1, "·"):
        x = _one_and_power(node.inputs[0])
        return None if x is None else (x, ("sigmoid", ()), 1)
    return None


def _silu(graph: Graph, node: Node) -> tuple[Node, Any, float] | None:
    if called(node, *QUOTIENTS) and len(node.inputs) == 2 and _arguments(node) == ("·", "·"):
        x = _one_and_power(node.inputs[1])
        return (x, ("silu", ()), 1) if x is node.inputs[0] else None
    return None


def _mean(graph: Graph, node: Node) -> tuple[Node, Any, float] | None:
    """Means over one axis after the other."""
    if not node.inputs or not called(node.inputs[0], "mean over"):
        return None
    inner = node.inputs[0]
    source = inner.inputs[0]
    label: Any = inner.label
    (_, axes, keeps), mine = label, node.label
    rank = len(source.shape)
    if node.label == WHOLE and not keeps and min(axes) >= 2:
        return source, WHOLE, 1
    if not called(node, "mean over") or not isinstance(mine, tuple) or mine[2] != keeps:
        return None
    left = list(range(rank)) if keeps else [axis for axis in range(rank) if axis not in axes]
    both = tuple(sorted({*axes, *(left[axis] for axis in mine[1])}))
    if both != tuple(range(2, rank)):
        return None
    return (source, WHOLE, 1) if keeps else None
