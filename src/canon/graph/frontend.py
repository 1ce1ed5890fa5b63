"""What both front ends share: steps, and the values of nodes, some of which are names of the same memory.

torch.fx for most models, torch.export for what fx cannot trace. Both run on tensors without data, so tracing costs no
forward pass and no copy of the weights, and neither touches the model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from torch import Tensor, fx, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from canon.errors import TraceError
from canon.graph.experts import whole_name
from canon.graph.modules import RESIZABLE
from canon.graph.rules import ALIASES, VIEWS, Call
from canon.graph.values import Value, values_in


class FrontendError(Exception):
    """This front end cannot trace the model; `node` says how far it came."""

    def __init__(self, message: str, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node


MOST_STEPS: Final = 20_000
"""Operations of a forward pass that are followed."""


MOST_RUN: Final = 12_000
"""The same where each has to be run; what stands in blocks that repeat is run once."""


def check_steps(count: int, most: int = MOST_STEPS) -> None:
    """Refuse a forward pass that would take too long to follow."""
    if count > most:
        raise TraceError(
            f"the forward pass has more than {most:,} operations",
            hint="So many are followed at most; give the part of the model that matters",
        )


@dataclass(frozen=True)
class Operation:
    """One operation on the way through the forward pass."""

    node: str
    out: Any
    """The result on meta tensors."""

    call: Call | None
    """None: unknown, and `reason` names it. The tracer pins what it touches."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reason: str

    hidden: tuple[str, ...] = ()
    """Tensors that an unknown layer reads, by name."""

    stale: tuple[Value, ...] = ()
    """Views, read later on, of memory that this step changes in place."""


Attach = Callable[[Any], None]
"""Given back with each step: the tracer hands over the step's value."""


class Environment:
    """Values by graph node.

    A node that was changed in place is another name of the result from then on: `x.add_(y)` and later `x`.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._position = {node: index for index, node in enumerate(graph.nodes)}
        self._values: dict[fx.Node, Any] = {}
        self._base: dict[fx.Node, tuple[fx.Node, bool]] = {}
        self._names: dict[fx.Node, list[fx.Node]] = {}

    def operands(self, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A node's arguments with values in place of nodes."""
        args: Any = fx.map_arg(node.args, self._values.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, self._values.__getitem__)
        return args, dict(kwargs)

    def set(self, node: fx.Node, value: Any) -> None:
        """A node's value."""
        self._values[node] = value

    def note(self, node: fx.Node, name: str | None, in_place: bool) -> tuple[Value, ...]:
        """Write down which memory a node names; gives the stale views when the node changes that memory."""
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            return ()
        whole = in_place or name in ALIASES
        if not whole and name not in VIEWS:
            return ()
        base, exact = self._base.get(source, (source, True))
        self._base[node] = (base, exact and whole)
        names = self._names.setdefault(base, [base])
        names.append(node)
        if not in_place:
            return ()
        stale: list[Value] = []
        for other in names:
            if other is not node and not self._same(other, source) and self._read_after(other, node):
                stale += values_in(self._values.get(other))
        return tuple(stale)

    def attach(self, node: fx.Node, value: Any, in_place: bool) -> None:
        """A step's value; every other name of memory changed in place gets it too."""
        self._values[node] = value
        source = node.args[0] if in_place and node.args else None
        if isinstance(source, fx.Node):
            base, _ = self._base.get(source, (source, True))
            for other in self._names.get(base, [source]):
                known = self._values.get(other)
                if self._same(other, source):
                    self._values[other] = value
                elif isinstance(known, Value) and known.zeros:
                    self._values[other] = replace(known, zeros=False)

    def _same(self, a: fx.Node, b: fx.Node) -> bool:
        (base_a, whole_a), (base_b, whole_b) = (self._base.get(n, (n, True)) for n in (a, b))
        return a is b or (base_a is base_b and whole_a and whole_b)

    def _read_after(self, node: fx.Node, change: fx.Node) -> bool:
        return any(self._position[user] > self._position[change] for user in node.users)


class Elementwise:
    """An operation as a function of its one tensor operand. Two are equal if they are known to compute the same."""

    def __init__(self, target: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs

    def __call__(self, x: Tensor) -> Tensor:
        """What it makes of some numbers, which stay as they are."""
        given = [x.clone() if isinstance(value, Value) else value for value in self._args]
        result: Tensor = self._target(*given, **self._kwargs)
        return result

    @cached_property
    def _key(self) -> Hashable:
        target = self._target
        if isinstance(target, nn.Module):
            # torch's own activations are what their settings say.
            settings = {name: value for name, value in vars(target).items() if not name.startswith("_")}
            known = type(target).__module__ == nn.ReLU.__module__ and not [*target.parameters()]
            key: Hashable = (type(target), *settings.items()) if known else id(self)
        else:
            plain = [None if isinstance(value, Value) else value for value in self._args]
            key = (target, *plain, *self._kwargs.items())
        try:
            hash(key)
        except TypeError:
            return id(self)
        return key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Elementwise) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def owner(node: fx.Node, operands: Any, modules: dict[str, nn.Module]) -> tuple[str, bool]:
    """The module that owns the first parameter among the operands, and whether a rewrite can update its sizes.

    It can when the module's own forward pass makes the call: whoever else calls may have the sizes written in.
    """
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    for value in values_in(operands):
        if value.param is not None:
            prefix = value.param.rpartition(".")[0]
            if whole_name(value.param) is not None:
                return value.param, True  # an expert's own part, under a name of its own
            inside = bool(stack) and stack[-1][0] == prefix
            return prefix or value.param, inside and isinstance(modules.get(prefix), RESIZABLE)
    path = stack[-1][0] if stack else ""
    return (path, True) if isinstance(modules.get(path), _InstanceNorm) else ("", False)
