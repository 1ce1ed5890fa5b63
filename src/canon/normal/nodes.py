"""A forward pass as values and what they are made from, whatever names and order its program has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor

from canon.errors import UnsupportedModelError

Kind = Literal["input", "tensor", "linear", "affine", "sum", "product", "cat", "call", "output"]

MOST_NODES: Final = 20_000
"""Programs with more operations are not brought into a normal form."""


class NotNormal(UnsupportedModelError):
    """A program that has no normal form here."""


@dataclass(frozen=True, eq=False)
class Linear:
    """A convolution or linear layer where it is called."""

    weight: Tensor
    """Rows first, as `conv` has them; those of a transposed convolution as torch keeps them."""

    bias: Tensor | None
    stride: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    """Zeros before and behind, by axis."""

    dilation: tuple[int, ...] = ()
    groups: int = 1
    mode: str = "zeros"
    transposed: tuple[int, ...] | None = None
    """Output padding of a transposed convolution; None: it is none."""

    name: str = ""
    """The layer's name in its program."""

    outer: tuple[tuple[int, int], ...] = ()
    """Padding that an operation of its own in front of the layer adds, included in `padding`."""

    tensors: tuple[str, ...] = ()
    """Names of weight and bias in the program, where a function reads them and no layer is called."""

    turned: bool = False
    """Whether that function reads the weight the other way around."""

    whole: Linear | None = None
    """The convolution that a linear layer is, over all of its input."""

    part: tuple[Linear, Tensor] | None = None
    """The layer that these are some rows of, and which; None: it is all of one."""

    @property
    def rank(self) -> int:
        """Spatial axes."""
        return len(self.stride)

    @property
    def reach(self) -> tuple[int, ...]:
        """Positions from the first to the last tap, by axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.weight.shape[2:], self.dilation, strict=True))

    def with_numbers(self, weight: Tensor, bias: Tensor | None, **changes: Any) -> Linear:
        """The same call with other numbers."""
        return replace(self, weight=weight, bias=bias, **changes)


@dataclass(frozen=True, eq=False)
class Affine:
    """`scale · x + shift`, by channel or for all of them."""

    scale: Tensor
    """One number, or one for each channel (axis 1); float64."""

    shift: Tensor
    axis: int = 1
    sources: tuple[tuple[str, str], ...] = ()
    """Where the numbers stand in the program: `norm`, `scale`, `shift` or a tensor of a norm, and a name."""

    norm: Mapping[str, Any] | None = None
    """A batch norm's own tensors and epsilon, where it is nothing but one."""


@dataclass(eq=False)
class Node:
    """One value of the forward pass."""

    kind: Kind
    inputs: list[Node] = field(default_factory=list)
    label: Hashable = ()
    """What it does, without widths and numbers."""

    value: Any = None
    """Numbers: a `Linear`, an `Affine`, the coefficients of a sum, a tensor."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors of a layer that is neither."""

    name: str = ""
    """The operation's or layer's name in its program."""

    shape: Any = None
    """The value's shape, a list of shapes, or None where it is not known."""


class Graph:
    """A program's values in topological order. Steps change it in place; models are never touched."""

    def __init__(self, inputs: list[Node], output: Node, said: Iterable[str] = ()) -> None:
        self.inputs, self.output, self.said, self.changed = inputs, output, list(said), False
        self.order: list[Node] = []
        self.users: dict[Node, list[Node]] = {}
        self._stands_for: dict[Node, Node] = {}
        self.settle()

    def replace(self, old: Node, new: Node) -> None:
        """From the next `settle` on, `new` stands where `old` did."""
        self._stands_for[old], self.changed = new, True

    def resolve(self, node: Node) -> Node:
        """What stands for a node now."""
        path = []
        while node in self._stands_for:
            path.append(node)
            node = self._stands_for[node]
        for passed in path:
            self._stands_for[passed] = node
        return node

    def settle(self) -> None:
        """Put replacements in place, leave out what nothing needs, and order the rest."""
        order: list[Node] = []
        state: dict[Node, bool] = {}
        stack = [self.output]
        while stack:
            node = stack[-1]
            if state.get(node) is None:
                state[node] = False
                node.inputs = [self.resolve(n) for n in node.inputs]
                stack += [n for n in reversed(node.inputs) if n not in state]
            else:
                stack.pop()
                if not state[node]:
                    state[node] = True
                    order.append(node)
        self._stands_for = {}
        users: dict[Node, list[Node]] = {node: [] for node in order}
        for node in order:
            for source in dict.fromkeys(node.inputs):
                users[source].append(node)
        self.order, self.users = order, users

    def alone(self, node: Node) -> bool:
        """Whether one other value alone is made from this one, and from it once."""
        users = self.users[node]
        return len(users) == 1 and users[0].inputs.count(node) == 1

    def counts(self) -> Counter[str]:
        """How many nodes there are of each kind."""
        return Counter(node.kind for node in self.order)


def numbers(tensor: Tensor | None, like: Tensor) -> Tensor:
    """A tensor in float64, or zeros where there is none."""
    if tensor is None:
        return torch.zeros(like.shape[0], dtype=torch.float64, device=like.device)
    return tensor.detach().double()


def is_zero(tensors: Iterable[Tensor | None]) -> bool:
    """Whether all numbers are exactly zero. Tensors without numbers are not."""
    return all(t is None or (not t.is_meta and not bool(t.detach().any())) for t in tensors)
