"""Layers of one position: a convolution that stands over its input once is a linear layer, whatever axes it keeps.

`Conv2d(c, o, 1)` of a mean and `Linear(c, o)`, or a kernel as large as its input and a linear layer behind a flatten,
are one layer. Axes of one entry that a value has besides are put back behind it (`positions`), and behind whatever
treats every number by itself, until something reads them.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

from canon.normal.nodes import Graph, Linear, Node
from canon.normal.patterns import POINTWISE, WHOLE, called

FLAT: Final = ("flatten", 1)
RESHAPES: Final = ("view", "reshape", "unsqueeze", "unflatten", "squeeze", "_unsafe_view", "flatten", "getitem")


def flatten_layers(graph: Graph) -> list[str]:
    """Convolutions of one position as linear layers, and axes of one entry as late as they can stand."""
    said = []
    for node in graph.order:
        node_inputs = [graph.resolve(n) for n in node.inputs]
        if node.kind == "linear":
            made = _flat(node, node_inputs[0])
            said += [] if made is None else [f"'{node.name}' stands over its input once: a linear layer"]
        else:
            made = _later(node, node_inputs)
        if made is not None:
            graph.replace(node, made)
    return said


def ranks(graph: Graph) -> tuple[int, set[int]]:
    """How many layers of a program are no convolutions, and how many axes the others have."""
    found = [node.value.rank for node in graph.order if node.kind == "linear"]
    return found.count(0), set(found)


def in_place_of(value: Linear, owner: Linear) -> Linear | None:
    """A linear layer's numbers as the convolution that the owner has; None where they do not fit."""
    sides = owner.weight.shape[2:]
    if value.rank or value.weight.shape[1] % prod(sides):
        return None
    weight = value.weight.detach().reshape(len(value.weight), -1, *sides)
    return owner.with_numbers(weight, value.bias, outer=(), name=value.name, tensors=(), whole=None)


def _put(value: Node, like: Node) -> Node:
    """A value of rows alone with as many axes as another has."""
    return Node("call", [value], ("positions", len(like.shape) - 2), name=like.name, shape=like.shape)


def _rows(value: Node) -> Node:
    """A value as rows alone."""
    if called(value, "positions"):
        return value.inputs[0]
    if len(value.shape) == 2:
        return value
    return Node("call", [value], FLAT, name=value.name, shape=(value.shape[0], prod(value.shape[1:])))


def _single(shape: Any) -> bool:
    return isinstance(shape, tuple) and len(shape) > 2 and all(n == 1 for n in shape[2:])


def _flat(node: Node, source: Node) -> Node | None:
    value: Linear = node.value
    plain = value.transposed is None and value.groups == 1 and value.mode == "zeros" and value.rank > 0
    if not plain or not _single(node.shape) or not isinstance(source.shape, tuple):
        return None
    if any(any(p) for p in value.padding) or value.reach != source.shape[2:] or any(d != 1 for d in value.dilation):
        return None
    rows = Linear(value.weight.detach().flatten(1), value.bias, name=value.name, tensors=value.tensors, whole=value)
    made = Node("linear", [_rows(source)], value=rows, name=node.name, shape=node.shape[:2])
    return _put(made, node)


def _later(node: Node, inputs: list[Node]) -> Node | None:
    if not inputs or node.tensors:
        return None
    first = inputs[0]
    if node.label == FLAT and called(first, "positions"):
        return first.inputs[0]
    if not _single(node.shape):
        return None
    if node.label == WHOLE and first.kind == "call" and first.label == ("flatten", 2):
        whole = first.inputs[0]
        shape = (*node.shape[:2], *(1 for _ in whole.shape[2:]))
        return _put(_rows(Node("call", [whole], WHOLE, name=node.name, shape=shape)), node)
    if called(node, *RESHAPES) and len(inputs) == 1 and _keeps(node) and isinstance(first.shape, tuple):
        alike = first.shape[:2] == node.shape[:2] and prod(first.shape) == prod(node.shape)
        return _put(_rows(first), node) if alike and first.shape != node.shape else None
    by_entry = node.kind in ("affine", "sum", "product") or (node.kind == "cat" and node.label == 1)
    if not all(called(n, "positions") for n in inputs) or not (by_entry or called(node, *POINTWISE)):
        return None
    if any(n.shape[2:] != node.shape[2:] for n in inputs):
        return None
    rows = [n.inputs[0] for n in inputs]
    return _put(Node(node.kind, rows, node.label, node.value, name=node.name, shape=node.shape[:2]), node)


def _keeps(node: Node) -> bool:
    """Whether a reshape or a way of indexing leaves all entries where they are."""
    label: Any = node.label
    if label[0] != "getitem":
        return True
    chosen = label[1][1][2:]
    parts = chosen[0][1:] if chosen and isinstance(chosen[0], tuple) and chosen[0][:1] == ("[",) else chosen
    return all(part in (None, "Ellipsis", ("slice", None, None, None)) for part in parts)
