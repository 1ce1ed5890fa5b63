"""The fast front end: torch.fx on a clone of the model whose tensors are on the meta device."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from canon.errors import TraceError, reason_of
from canon.graph.counted import count_uses, uses_in
from canon.graph.frontend import Attach, Elementwise, Environment, FrontendError, Operation, check_steps, owner
from canon.graph.inputs import map_tensors
from canon.graph.modules import hooked, operands_of
from canon.graph.names import function_name, writes_in_place
from canon.graph.opened import open_layers
from canon.graph.results import function_result, layer_result
from canon.graph.rules import ZEROS, Call, lookup
from canon.graph.tensors import meta_clone
from canon.graph.values import Extent, Value, data_of, extents_in, fixed, has_tensor, shape_of, values_in

_HARMLESS_METHODS = frozenset({"dim", "ndimension", "is_floating_point", "get_device", "is_contiguous", "element_size"})
_HARMLESS_ATTRIBUTES = frozenset({"ndim", "device", "dtype", "is_cuda", "requires_grad", "layout"})
"""What may be asked of an activation without learning how many channels it has."""

_RESULTS = ("values", "indices")
"""What torch calls the results of operations that give two."""


def fx_operations(
    model: nn.Module, example: tuple[Any, ...], aliases: dict[str, str]
) -> Iterator[tuple[Operation, Attach]]:
    """Walk the forward pass with torch.fx. Steps come in execution order; give each one's value back."""
    try:
        clone = meta_clone(model)
        open_layers(clone)
        used = count_uses(clone)
        graph = _Tracer().trace(clone)
        used = used | uses_in(graph)
    except TraceError:
        raise
    except Exception as error:
        raise FrontendError(f"{type(error).__name__}: {reason_of(error)}") from error
    walker = _Walker(clone, graph, aliases)
    for name in sorted(used):
        yield walker.reading(name), lambda value: None
    inputs = iter(example)
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                walker.environment.set(node, _input(node, inputs))
            elif node.op == "get_attr":
                walker.environment.set(node, walker.attribute(str(node.target)))
            else:
                yield from walker.step(node)


def _input(node: fx.Node, inputs: Iterator[Any]) -> Any:
    missing = object()
    given = next(inputs, missing)
    if given is missing:
        if not node.args:
            raise FrontendError(f"the model also needs an input '{node.target}'")
        given = node.args[0]
    return map_tensors(lambda x: Value(x.to("meta")), given)


class _Tracer(fx.Tracer):
    """Stops where a forward pass is too long."""

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """One more operation."""
        node = super().create_node(*args, **kwargs)
        self.count = getattr(self, "count", 0) + 1
        check_steps(self.count)
        return node


class _Walker:
    """One walk through a traced graph."""

    def __init__(self, model: nn.Module, graph: fx.Graph, aliases: dict[str, str]) -> None:
        self.model = model
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.aliases = aliases
        self.environment = Environment(graph)

    def reading(self, name: str) -> Operation:
        """The forward pass computes with a layer's width: the layer's tensors must keep their sizes."""
        path = name.rpartition(".")[0]
        hidden = self.tensors_of(path)
        return Operation(name, None, None, (), {}, "", hidden)

    def tensors_of(self, path: str) -> tuple[str, ...]:
        """First names of a layer's parameters and buffers."""
        module = self.modules[path]
        names = [name for name, _ in [*module.named_parameters(), *module.named_buffers()]]
        return tuple(self.aliases.get(f"{path}.{name}", "") for name in names)

    def attribute(self, target: str) -> Any:
        """A parameter, a buffer, or a constant of the forward pass."""
        value: Any = self.model
        for part in target.split("."):
            value = getattr(value, part)
        if isinstance(value, Tensor):
            return Value(value.detach().to("meta"), param=self.aliases.get(target))
        return value

    def step(self, node: fx.Node) -> Iterator[tuple[Operation, Attach]]:
        """The node as a step; nothing when it only moves plain Python values around."""
        args, kwargs = self.environment.operands(node)
        if node.op == "output":
            yield Operation(node.name, None, None, args, {}, "model output"), lambda value: None
            return
        plain = _plain(node, args)
        if plain is not None:
            self.environment.note(node, function_name(node.target), False)
            self.environment.set(node, plain[0])
            return
        module = self.modules[str(node.target)] if node.op == "call_module" else None
        run = _runner(node, module)
        out = self.run(node, run, module, args, kwargs)
        if not values_in((args, kwargs)) and not extents_in((args, kwargs)):
            made = fixed(out)
            zeros = isinstance(made, Value) and function_name(node.target) in ZEROS
            self.environment.set(node, replace(made, zeros=True) if zeros else made)
            return
        in_place = writes_in_place(node, module)
        step = self.describe(node, run, module, args, kwargs, out)
        stale = self.environment.note(node, step.call.name if step.call else None, in_place)
        if in_place and any(value.param is not None for value in values_in(args[:1])):
            step = Operation(step.node, out, None, args, kwargs, "the forward pass changes a tensor of the model")
        elif stale:
            step = Operation(step.node, out, step.call, step.args, step.kwargs, step.reason, step.hidden, stale)
        yield step, lambda value: self.environment.attach(node, value, in_place)

    def run(self, node: fx.Node, run: Callable[..., Any], module: nn.Module | None, args: Any, kwargs: Any) -> Any:
        """The result on meta tensors."""
        known = None
        if module is None:
            known = function_result(run, args, kwargs) if node.op == "call_function" else None
        elif not kwargs:
            known = layer_result(module, args)
        if known is not None:
            return known
        try:
            return run(*data_of(args), **data_of(kwargs))
        except Exception as error:
            raise FrontendError(f"{type(error).__name__}: {reason_of(error)}", node.name) from error

    def describe(
        self, node: fx.Node, run: Callable[..., Any], module: nn.Module | None, args: Any, kwargs: Any, out: Any
    ) -> Operation:
        """The step of a node: known by the name of its operation, or unknown."""
        function = Elementwise(run, args, kwargs)
        if module is not None:
            return self.describe_layer(node, function, module, args, kwargs, out)
        target: Any = node.target
        name = target if node.op == "call_method" else function_name(target)
        if target is getattr and args[1:] in (("T",), ("mT",)):
            name, args = {"T": "numpy_T", "mT": "mT"}[args[1]], args[:1]
        shown = name or getattr(target, "__name__", str(target))
        call = None
        if name is not None and has_tensor(out) and kwargs.get("out") is None and lookup(name) is not None:
            layer, resizable = owner(node, (args, kwargs), self.modules)
            call = Call(name, out, function, layer, resizable, rest_read(node))
        reason = f"unknown operation {shown}"
        if not has_tensor(out):
            reason = f"the number of channels decides what {shown} gives"
        return Operation(node.name, out, call, args, kwargs, reason)

    def describe_layer(
        self, node: fx.Node, function: Any, module: nn.Module, args: Any, kwargs: Any, out: Any
    ) -> Operation:
        """The step of a layer, called by the name of its function."""
        path = str(node.target)
        found = operands_of(module) if len(args) == 1 and not kwargs else None
        if found is None:
            hidden = self.tensors_of(path)
            reason = f"unknown layer {type(module).__name__}"
            if hooked(module):
                reason = f"layer {type(module).__name__} with a hook"
            return Operation(node.name, out, None, args, kwargs, reason, hidden)
        name, tensors, settings = found
        owned = {t: self.layer_tensor(module, path, t) for t in tensors}
        call = Call(name, out, function, path, True, rest_read(node))
        hidden = () if tensors else self.tensors_of(path)
        return Operation(node.name, out, call, args, {**owned, **settings}, "", hidden)

    def layer_tensor(self, module: nn.Module, path: str, name: str) -> Value | None:
        """A layer's own tensor as an operand."""
        tensor = getattr(module, name, None)
        return None if tensor is None else Value(tensor, param=self.aliases.get(f"{path}.{name}"))


def _runner(node: fx.Node, module: nn.Module | None) -> Callable[..., Any]:
    if module is not None:
        return module
    target: Any = node.target
    if node.op == "call_method":
        return lambda value, *args, **kwargs: getattr(value, target)(*args, **kwargs)
    return target  # type: ignore[no-any-return]


def _plain(node: fx.Node, args: tuple[Any, ...]) -> tuple[Any] | None:
    """The value of a node that computes with shapes and containers only, where that needs no rule."""
    target: Any = node.target
    first = args[0] if args else None
    if target is operator.getitem and not isinstance(first, (Value, Tensor)):
        return (first[args[1]],)  # type: ignore[index]
    if target is getattr and isinstance(first, list) and args[1] in _RESULTS:
        return (first[_RESULTS.index(args[1])],)
    if isinstance(first, Value):
        if target is getattr:
            if args[1] == "shape":
                return (shape_of(first),)
            return (getattr(first.data, args[1]),) if args[1] in _HARMLESS_ATTRIBUTES else None
        if node.op == "call_method":
            if target == "size":
                shape = shape_of(first)
                dims = [*args[1:], *node.kwargs.values()]
                return (shape[dims[0]],) if dims else (shape,)
            return (getattr(first.data, target)(),) if target in _HARMLESS_METHODS and len(args) == 1 else None
        return None
    if target is operator.add and all(isinstance(a, tuple) for a in args):
        return (args[0] + args[1],)
    if target is operator.mul and len(args) == 2 and type(args[0]) in (int, Extent) and type(args[1]) in (int, Extent):
        a, b = args
        if isinstance(a, Extent) != isinstance(b, Extent):
            return (a.times(b) if isinstance(a, Extent) else b.times(a),)
    return None


def rest_read(node: fx.Node) -> bool:
    """Whether anything but the first of a node's results may be read."""
    first: dict[Any, Any] = {operator.getitem: 0, getattr: _RESULTS[0]}
    return not all(u.target in first and (u.args[1] == first[u.target] or not u.users) for u in node.users)
