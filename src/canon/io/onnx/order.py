"""Nodes in an order in which every value is made before it is read: the standard asks for it, and some tools forget."""

from __future__ import annotations

import heapq

from canon.io.onnx.model import Node


def in_order(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The same nodes, each as early as the file has it and its operands allow. What waits for itself stays at the end.

    >>> first, second = Node("Relu", "", "a", ("x",), ("h",)), Node("Relu", "", "b", ("h",), ("y",))
    >>> [node.name for node in in_order((second, first))]
    ['a', 'b']
    """
    makers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    needs = [{makers[name] for name in reads(node) if name in makers} for node in nodes]
    if all(maker < index for index, wanted in enumerate(needs) for maker in wanted):
        return nodes
    readers: dict[int, list[int]] = {}
    for index, wanted in enumerate(needs):
        for maker in wanted:
            readers.setdefault(maker, []).append(index)
    missing = [len(wanted) for wanted in needs]
    ready = [index for index, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    taken = set(order)
    return tuple(nodes[index] for index in [*order, *(i for i in range(len(nodes)) if i not in taken)])


def reads(node: Node) -> list[str]:
    """Every name that a node reads, also from within its branches."""
    found = list(node.inputs)
    for branch in node.branches.values():
        found += branch.outputs
        for inner in branch.nodes:
            found += reads(inner)
    return found
