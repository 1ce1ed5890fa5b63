"""A normal form as items that can be matched: linear maps one behind the other are one item.

Whether one layer was written as two, or a norm folded into the layer before it, is seen when the numbers are brought
over; what is matched is where linear maps stand.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from canon.normal.curves import NAMES
from canon.normal.nodes import Graph, Linear, Node


@dataclass(eq=False)
class Item:
    """A chain of linear maps, or one other operation."""

    members: list[Node]
    """In the order of execution."""

    inputs: list[Item] = field(default_factory=list)
    label: Hashable = ()
    position: int = 0

    @property
    def node(self) -> Node:
        """The value that others read."""
        return self.members[-1]

    @property
    def sizes(self) -> Hashable:
        """Kernel sizes: they tell apart what structure does not."""
        return tuple(tuple(m.value.weight.shape[2:]) for m in self.members if m.kind == "linear")

    @property
    def called(self) -> str:
        """What its operation is called."""
        label = self.node.label
        return str(label[0]) if isinstance(label, tuple) and label else ""

    @property
    def loose(self) -> Hashable:
        """The label, with all functions that treat every number by itself as one: a thief may have taken another."""
        curve = self.node.kind == "call" and len(self.inputs) == 1 and not self.node.tensors and self.called in NAMES
        return ("curve",) if curve else self.label

    @property
    def commutes(self) -> bool:
        """Whether the order of inputs means nothing."""
        return self.node.kind in ("sum", "product", "cat")

    def edges(self) -> list[tuple[Hashable, Item]]:
        """Inputs with how they are read."""
        if self.node.kind == "sum":
            return list(zip(self.node.value, self.inputs, strict=True))
        if self.commutes:
            return [(0, item) for item in self.inputs]
        return list(enumerate(self.inputs))


def items_of(graph: Graph) -> list[Item]:
    """All items but the output, in the order of execution."""
    of: dict[Node, Item] = {}
    found: list[Item] = []
    for node in graph.order:
        if node.kind == "output":
            continue
        first = node.inputs[0] if node.kind in ("linear", "affine") else None
        if first is not None and first.kind in ("linear", "affine") and graph.alone(first):
            item = of[first]
            item.members.append(node)
        else:
            item = Item([node], [of[n] for n in node.inputs], position=len(found))
            found.append(item)
        of[node] = item
    for item in found:
        item.label = _label(item)
    return found


def outputs_of(graph: Graph, items: list[Item]) -> list[Item]:
    """The items that the model gives, in order."""
    of = {node: item for item in items for node in item.members}
    return [of[node] for node in graph.output.inputs]


def _label(item: Item) -> Hashable:
    node = item.node
    if node.kind in ("linear", "affine"):
        layers = [member.value for member in item.members if member.kind == "linear"]
        return ("linear", *geometry(layers)) if layers else ("affine",)
    if node.kind == "tensor":
        return ("tensor",)
    if node.kind == "call" and node.tensors:
        return ("call", node.label, tuple(sorted(node.tensors)))
    return (node.kind, node.label)


def geometry(layers: list[Linear]) -> tuple[Hashable, ...]:
    """How positions of a chain's output stand over positions of its input, whatever the kernels' sizes."""
    rank = layers[0].rank
    if any(layer.transposed is not None or layer.rank != rank for layer in layers):
        return tuple((layer.rank, layer.transposed, layer.stride, layer.mode) for layer in layers)
    excess, stride = [0] * rank, [1] * rank
    for layer in layers:
        for axis in range(rank):
            excess[axis] += (layer.reach[axis] - 1 - sum(layer.padding[axis])) * stride[axis]
            stride[axis] *= layer.stride[axis]
    return (rank, tuple(excess), tuple(stride), tuple(sorted({layer.mode for layer in layers})))
