"""Stretches of a recorded forward pass, run on numbers of our own, and the maps at their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_flatten

from canon.graph.attention import ATEN
from canon.graph.recorded import Program
from canon.graph.tensors import tensor_names

FAR: Final = 200
"""Operations between a map and attention that are followed."""

MAPS: Final[dict[Any, tuple[int, int]]] = {
    ATEN.linear.default: (1, 2),
    ATEN.addmm.default: (2, 0),
    ATEN.mm.default: (1, 2),
    ATEN.matmul.default: (1, 2),
}
"""Operations of a map: where their weight and their bias stand among the operands."""


class UnknownError(Exception):
    """Something that is not understood."""


def need(condition: bool) -> None:
    """Give up where something is not as it should be."""
    if not condition:
        raise UnknownError


Step = tuple[fx.Node, Any]
"""An operation with its operands."""


class Stretches:
    """A recorded program with the model's tensors, all in float64."""

    def __init__(self, model: nn.Module, program: Program, example: tuple[Any, ...]) -> None:
        self.nodes = list(program.graph.nodes)
        self.place = {node: index for index, node in enumerate(self.nodes)}
        self.names, self.tensors = program.names, tensor_names(model)[0]
        leaves = [x for x in tree_flatten(list(example))[0] if isinstance(x, Tensor)]
        self.inputs = {f"input_{index}": x for index, x in enumerate(leaves)}
        self.fixed: dict[fx.Node, Any] = {}
        self.plans: dict[tuple[fx.Node, ...], list[Step]] = {}
        self.generator = torch.Generator().manual_seed(0)

    def map_before(self, node: fx.Node) -> tuple[fx.Node, set[fx.Node]]:
        """The one map that makes a value, and what stands between."""
        found: set[fx.Node] = set()
        between: set[fx.Node] = set()
        left = [node]
        while left:
            one = left.pop()
            if one in found or one in between:
                continue
            if self.is_map(one):
                found.add(one)
                continue
            between.add(one)
            need(len(between) <= FAR)
            left += one.all_input_nodes
        need(len(found) == 1)
        return found.pop(), between

    def is_map(self, node: fx.Node) -> bool:
        """Whether a node is a product with one of the model's matrices."""
        return node.target in MAPS and self.stored(node.args[MAPS[node.target][0]]) is not None

    def stored(self, node: Any) -> str | None:
        """The tensor of the model that a node is, or is a part of."""
        while isinstance(node, fx.Node) and node.op == "call_function" and len(node.all_input_nodes) == 1:
            node = node.all_input_nodes[0]
        return self.names.get(node.name) if isinstance(node, fx.Node) and node.op == "placeholder" else None

    def run(self, target: fx.Node, known: Mapping[fx.Node, Tensor]) -> Tensor:
        """A node's value in float64, where some nodes have values of our own."""
        key = (target, *known)
        if key not in self.plans:
            self.plans[key] = self.plan(target, known.keys())
        values: dict[fx.Node, Any] = dict(known)
        for node, operands in self.plans[key]:
            values[node] = _call(node, operands, lambda one: values[one] if one in values else self.fixed[one])
        result: Tensor = values[target]
        return result

    def plan(self, target: fx.Node, known: Set[fx.Node]) -> list[Step]:
        """What has to be run for a node, in order; what depends on nothing that is known by then is run at once."""
        needed: set[fx.Node] = set()
        left = [target]
        while left:
            node = left.pop()
            if node not in needed:
                needed.add(node)
                left += [] if node in known else node.all_input_nodes
        need(len(needed) <= 4 * FAR)
        follow, steps = set(known), list[Step]()
        for node in sorted(needed - known, key=self.place.__getitem__):
            if any(source in follow for source in node.all_input_nodes):
                follow.add(node)
                steps.append((node, _operands(node)))
            elif node.op == "placeholder":
                self.fixed[node] = self.leaf(node)
            elif node not in self.fixed:
                self.fixed[node] = _call(node, _operands(node), self.fixed.__getitem__)
        return steps

    def leaf(self, node: fx.Node) -> Tensor:
        """What no operation makes."""
        if node.name in self.names:
            found = self.tensors[self.names[node.name]].detach().cpu()
        else:
            shown = node.meta["val"]
            need(node.name in self.inputs or not shown.numel())
            found = self.inputs.get(node.name, torch.empty(shown.shape, dtype=shown.dtype)).cpu()
        return found.double() if found.is_floating_point() else found

    def rows_of(self, node: Any, axis: int) -> tuple[str, int, Tensor]:
        """The tensor that an operand is a part of, its axis that stands on one of the operand's, and entries there."""
        name = self.stored(node)
        need(name is not None and isinstance(node, fx.Node))
        assert name is not None, "it was just asked"
        leaf = node
        while leaf.op != "placeholder":
            leaf = leaf.all_input_nodes[0]
        shape = self.tensors[name].shape
        if leaf is node:
            return name, axis, torch.arange(shape[axis])
        for own in range(len(shape)):
            count = torch.arange(shape[own], dtype=torch.float64)
            marked = count.view([-1 if i == own else 1 for i in range(len(shape))]).expand(shape)
            seen = self.run(node, {leaf: marked}).movedim(axis, 0)
            seen = seen.reshape(len(seen), -1)
            if bool((seen == seen[:, :1]).all()) and len(seen) == len(seen[:, 0].unique()) > 0:
                return name, own, seen[:, 0].long()
        raise UnknownError

    def drawn(self, *shape: int) -> Tensor:
        """Random numbers."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)


def _operands(node: fx.Node) -> Any:
    """A node's operands, for numbers in float64 on the host."""

    def real(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return torch.float64 if x.is_floating_point else x
        return torch.device("cpu") if isinstance(x, torch.device) else x

    return map_aggregate((node.args, dict(node.kwargs)), real)


def _call(node: fx.Node, operands: Any, value: Callable[[fx.Node], Any]) -> Any:
    args, kwargs = fx.map_arg(operands, value)
    if node.target is ATEN.detach_.default:
        return args[0].detach()
    return node.target(*args, **kwargs)  # type: ignore[operator]
