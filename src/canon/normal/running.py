"""A program that is being rewritten, with what is known of its values: it runs in float64, stretch by stretch."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from canon.normal.spelling import called_name

Step = nn.Module | Tensor | tuple[str, tuple[Any, ...]]
"""A layer, a tensor that is added, or a method of tensors with its settings."""

STRETCH: Final = "canon_stretch_"
"""How the names of layers and tensors begin that are put into a program."""

FILLED: Final = ("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like")
"""Functions of a value that ask it for nothing but its size."""


class Running:
    """A suspect's program as it is rewritten."""

    def __init__(self, model: nn.Module, graph: fx.Graph, example: tuple[Any, ...]) -> None:
        self.graph = fx.Graph()
        self.graph.output(self.graph.graph_copy(graph, {}))
        self.held: dict[str, Any] = {}
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                found: Any = model
                for part in str(node.target).split("."):
                    found = getattr(found, part, node.meta.get("canon_constant"))
                self.held[str(node.target)] = found
        self.example, self.said = example, list[str]()
        self.shape: dict[fx.Node, Any] = {}
        self.constants: set[fx.Node] = set()
        self.doubles: dict[str, Any] = {}
        self.written: set[fx.Node] = set()
        self.run()

    def module(self) -> fx.GraphModule:
        """The program as it is now."""
        used = {str(n.target) for n in self.graph.nodes if n.op in ("call_module", "get_attr")}
        return fx.GraphModule({name: self.held[name] for name in used}, self.graph).eval()

    def run(self) -> None:
        """Shapes of all values; sizes that are computed become plain numbers."""
        known: dict[fx.Node, Any] = {}
        given = iter(self.example)
        with torch.no_grad():
            for node in list(self.graph.nodes):
                if node.op == "placeholder":
                    known[node] = self.like(next(given, node.args[0] if node.args else None))
                elif node.op == "output":
                    break
                else:
                    known[node] = self.call(node, known)
                    if called(node) in FILLED:
                        known[self._hold(node, known[node])] = known[node]
        self.shape = {n: tuple(v.shape) if isinstance(v, Tensor) else None for n, v in known.items()}
        for node, value in known.items():
            if node.op not in ("placeholder", "get_attr") and _is_plain(value):
                plain = tuple(value) if isinstance(value, torch.Size) else value
                for user in list(node.users):
                    user.args = _with_number(user.args, node, plain)
                    user.kwargs = _with_number(user.kwargs, node, plain)
        self._tidy()
        self.constants = set()
        for node in self.graph.nodes:
            sources = node.all_input_nodes
            computed = node.op in ("call_function", "call_method") and sources
            if node.op == "get_attr" or (computed and all(n in self.constants for n in sources)):
                self.constants.add(node)

    def _hold(self, node: fx.Node, value: Tensor) -> fx.Node:
        with self.graph.inserting_before(node):
            held = self.hold(value)
        node.replace_all_uses_with(held)
        return held

    def _tidy(self) -> None:
        for node in reversed(list(self.graph.nodes)):
            if not node.users and node.op not in ("placeholder", "output"):
                self.graph.erase_node(node)

    def like(self, value: Any) -> Any:
        """An input of the same shape: random where it holds numbers."""
        if isinstance(value, Tensor) and value.is_floating_point():
            return torch.randn(value.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        return value

    def call(self, node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
        """One operation, in float64."""
        if node.op == "get_attr":
            return _double(self.held[str(node.target)])
        args: Any = fx.map_arg(node.args, known.__getitem__)
        kwargs: Any = fx.map_arg(dict(node.kwargs), known.__getitem__)
        if node.op == "call_module":
            name = str(node.target)
            if name not in self.doubles:
                self.doubles[name] = copy.deepcopy(self.held[name]).double()
            return _double(self.doubles[name](*args, **kwargs))
        if node.op == "call_method":
            return _double(getattr(args[0], str(node.target))(*args[1:], **kwargs))
        return _double(node.target(*args, **kwargs))  # type: ignore[operator]

    def constant(self, node: fx.Node) -> bool:
        """Whether a value is made from the model's tensors alone."""
        return node in self.constants

    def tensor(self, node: fx.Node) -> Tensor | None:
        """A value that is made from the model's tensors alone, in their own precision; None where it is no tensor."""
        if node.op == "get_attr":
            found = self.held[str(node.target)]
            return found.detach() if isinstance(found, Tensor) else None
        if not self.constant(node):
            return None
        known = {n: self.tensor(n) for n in node.all_input_nodes}
        made = self.call(node, known)
        like = next((t for t in known.values() if t is not None), None)
        return made.to(like.dtype) if isinstance(made, Tensor) and like is not None else None

    def hold(self, tensor: Tensor) -> fx.Node:
        """A tensor of the program's own."""
        name = f"{STRETCH}{len(self.held)}"
        self.held[name] = tensor
        node = self.graph.get_attr(name)
        self.constants.add(node)
        return node

    def value(self, nodes: Sequence[fx.Node], given: Mapping[fx.Node, Any]) -> Tensor:
        """What the last of some operations gives."""
        known: dict[fx.Node, Any] = dict(given)
        for node in nodes:
            known[node] = self.call(node, known)
        result = known[nodes[-1]]
        if not isinstance(result, Tensor):
            raise TypeError("a stretch that gives no tensor")
        return result

    def write(self, terms: Sequence[tuple[fx.Node, Sequence[Step]]], place: fx.Node) -> None:
        """Put layers in the place of an operation: what they make of some values, added up."""
        with self.graph.inserting_before(place):
            made = [self.layers(source, steps) for source, steps in terms]
            total = made[0]
            for other in made[1:]:
                total = self.graph.call_function(operator.add, (total, other))
        place.replace_all_uses_with(total)
        self._tidy()

    def layers(self, source: fx.Node, steps: Sequence[Step]) -> fx.Node:
        """Write steps, one behind the other."""
        node = source
        for step in steps:
            if isinstance(step, nn.Module):
                name = f"{STRETCH}{len(self.held)}"
                self.held[name] = step
                node = self.graph.call_module(name, (node,))
            elif isinstance(step, Tensor):
                node = self.graph.call_function(operator.add, (node, self.hold(step)))
            else:
                node = self.graph.call_method(step[0], (node, *step[1]))
            self.written.add(node)
        return node


def _with_number(operands: Any, node: fx.Node, plain: Any) -> Any:
    return fx.map_arg(operands, lambda n: plain if n is node else n)


def _is_plain(value: Any) -> bool:
    if isinstance(value, bool | int | float | torch.Size):
        return True
    return isinstance(value, tuple) and bool(value) and all(isinstance(v, int) for v in value)


def _double(value: Any) -> Any:
    return (
        value.detach().double()
        if isinstance(value, nn.Parameter) and value.is_floating_point()
        else (value.double() if isinstance(value, Tensor) and value.is_floating_point() else value)
    )


def called(node: fx.Node) -> str:
    """The name of a function's or method's operation."""
    if node.op == "call_method":
        name = str(node.target)
    else:
        name = called_name(node.target) or str(getattr(node.target, "__name__", ""))
    return name.removesuffix("_")
