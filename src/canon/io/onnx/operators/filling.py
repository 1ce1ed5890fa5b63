"""How many channels a value in blocks (NCHWc) has, without those that only fill up its last block.

A file does not say so. Values that are added, multiplied or computed from each other channel by channel have the same
number of them, and it is as large as what the layers that make and read them do anything with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from torch import Tensor

from canon.io.onnx.model import Node
from canon.io.onnx.operators.registry import NCHWC

BY_CHANNEL: Final = frozenset(
    "Add Sum Mul Relu Sigmoid Tanh HardSigmoid HardSwish LeakyRelu Elu Selu Celu Clip QuickGelu Gelu Softplus Mish "
    "BiasGelu FastGelu Erf Identity Cast".split()
)
"""Operators that compute every channel from the same one of each operand."""

KernelOf = Callable[[Node], tuple[Tensor, Tensor]]
"""The kernel of a layer in the usual order, and its bias."""


def channel_counts(nodes: Iterable[Node], kernel_of: KernelOf, numbers: Mapping[str, int]) -> dict[str, int]:
    """By value in blocks: how many channels it has; a value that is not named has as many as its blocks hold.

    Args:
        nodes: Of the file, in an order in which they can be computed.
        kernel_of: Gives the kernel of a layer in blocks.
        numbers: How many numbers each tensor of the file holds.
    """
    found = _Counts()
    for node in nodes:
        given = [name for name in node.inputs if name in found.above]
        if node.domain == NCHWC:
            _in_blocks(found, node, kernel_of)
        elif given:
            others = [name for name in node.inputs if name and name not in found.above and numbers.get(name, 2) > 1]
            found.unite(*given, *node.outputs[:1])
            if node.op not in BY_CHANNEL or others:
                found.whole.update([*given, *node.outputs[:1]])
    return found.result()


def _in_blocks(found: _Counts, node: Node, kernel_of: KernelOf) -> None:
    source, made = node.inputs[0], node.outputs[0]
    if node.op == "ReorderOutput":
        found.at_least(source, node.integer("channels", 0))
        return
    found.unite(made)
    if node.op == "Conv":
        kernel, bias = kernel_of(node)
        found.at_least(made, _last(kernel.flatten(1).abs().amax(1) + bias.abs()))
        found.unite(made, *(name for name in node.inputs[3:4] if name))
        if kernel.shape[1] == 1 and node.integer("group", 1) > 1:
            found.unite(made, *(name for name in [source] if name in found.above))
        elif node.integer("group", 1) > 1:
            found.whole.update([source, made])
        elif source in found.above:
            found.at_least(source, _last(kernel.transpose(0, 1).flatten(1).abs().amax(1)))
    elif node.op != "ReorderInput":
        found.unite(made, source)


def _last(sizes: Tensor) -> int:
    """How far the entries that are not zero reach."""
    alive = sizes.nonzero()
    return int(alive.max()) + 1 if len(alive) else 1


class _Counts:
    """Values with the same number of channels, and how large it must be."""

    def __init__(self) -> None:
        self.above: dict[str, str] = {}
        self.least: dict[str, int] = {}
        self.whole: set[str] = set()

    def top(self, name: str) -> str:
        self.above.setdefault(name, name)
        while self.above[name] != name:
            self.above[name] = name = self.above[self.above[name]]
        return name

    def unite(self, first: str, *others: str) -> None:
        first = self.top(first)
        for other in map(self.top, others):
            self.above[other] = first

    def at_least(self, name: str, count: int) -> None:
        self.least[name] = max(count, self.least.get(name, 0))

    def result(self) -> dict[str, int]:
        whole = {self.top(name) for name in self.whole}
        most: dict[str, int] = {}
        for name, count in self.least.items():
            most[self.top(name)] = max(count, most.get(self.top(name), 0))
        tops = {name: self.top(name) for name in [*self.above]}
        return {name: most[top] for name, top in tops.items() if top in most and top not in whole}
