"""Two ways to see a forward pass: torch.fx, and torch.export for what fx cannot trace.

Both run on tensors without data, so tracing costs no forward pass and no copy of the weights, and neither touches the
model: fx works on a clone whose tensors are on the meta device.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from canon.graph.modules import RESIZABLE, SHAPE_KEEPING, operands_of
from canon.graph.rules import Call, lookup
from canon.graph.rules.registry import _RULES
from canon.graph.state import Value


class FrontendError(Exception):
    """This front end cannot trace the model; `node` says how far it came."""

    def __init__(self, message: str, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node


@dataclass(frozen=True)
class Step:
    """One operation on the way through the forward pass."""

    node: str
    out: Any
    """The result on meta tensors."""

    call: Call | None
    """None: unknown, and `reason` names it. The tracer pins what it touches."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reason: str


Attach = Callable[[Any], None]
"""Given back with each step: the tracer hands over the step's value."""


def tensor_names(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All parameters and buffers by first name, and every name's first name."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    named = [*model.named_parameters(remove_duplicate=False)]
    named += [*model.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        aliases[name] = first.setdefault(id(tensor), name)
        tensors.setdefault(aliases[name], tensor)
    return tensors, aliases


def clone_with(model: nn.Module, tensors: dict[int, Tensor]) -> nn.Module:
    """A copy of a model that shares nothing but gets the given tensors in place of those with these ids.

    `copy.deepcopy` asks its memo first, so no weight is ever copied.
    """
    memo: dict[int, Any] = dict(tensors)
    result: nn.Module = copy.deepcopy(model, memo)
    return result


def meta_clone(model: nn.Module) -> nn.Module:
    """The model with every tensor on the meta device."""
    replaced: dict[int, Tensor] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        meta = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, nn.Parameter):
            meta = nn.Parameter(meta, requires_grad=False)
        replaced[id(tensor)] = meta
    return clone_with(model, replaced)


def _known_functions() -> dict[Any, str]:
    """Functions by identity: a user's own function called `relu` must not pass for torch's."""
    found: dict[Any, str] = {}
    spaces: list[Any] = [torch, nn.functional, torch._C._nn, operator]
    for name in [*_RULES, "pad"]:
        for space in spaces:
            function = getattr(space, name, None)
            if callable(function):
                found[function] = name
    found[torch.nn.functional.log_softmax] = "log_softmax"
    return found


_FUNCTIONS: dict[Any, str] = {}


def function_name(target: Any) -> str | None:
    """The rule name of a function, or None when it is not one we know."""
    if not _FUNCTIONS:
        _FUNCTIONS.update(_known_functions())
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[1] if target.namespace == "aten" else None
    try:
        name = _FUNCTIONS.get(target)
    except TypeError:
        return None
    if name is None and getattr(target, "__name__", "") == "stochastic_depth":
        module = str(getattr(target, "__module__", ""))
        return "stochastic_depth" if module.startswith("torchvision.") else None
    return name


def data_of(value: Any) -> Any:
    """The meta tensors inside a structure of operands."""
    if isinstance(value, Value):
        return value.data
    if isinstance(value, list):
        return [data_of(v) for v in value]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple(data_of(v) for v in value)
    if isinstance(value, dict):
        return {k: data_of(v) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(data_of(value.start), data_of(value.stop), data_of(value.step))
    return value


def _elementwise(target: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[Tensor], Tensor]:
    """The operation as a function of its one tensor operand."""

    def function(x: Tensor) -> Tensor:
        given = [x.clone() if isinstance(a, Value) else a for a in args]
        result: Tensor = target(*given, **kwargs)
        return result

    return function


def _literals(args: Any) -> tuple[Any, ...]:
    def literal(a: Any) -> Any:
        if isinstance(a, fx.Node):
            return None
        return tuple(literal(v) for v in a) if isinstance(a, (list, tuple)) else a

    return tuple(literal(a) for a in args)


def fx_steps(
    model: nn.Module, example: tuple[Any, ...], aliases: dict[str, str]
) -> Iterator[tuple[Step, Attach]]:
    """Walk the forward pass with torch.fx. Steps come in execution order; give each one's value back."""
    try:
        clone = meta_clone(model)
        graph = fx.Tracer().trace(clone)
    except Exception as error:
        raise FrontendError(f"{type(error).__name__}: {error}") from error
    modules = dict(clone.named_modules(remove_duplicate=False))
    env: dict[fx.Node, Any] = {}
    inputs = iter(example)
    for node in graph.nodes:
        args = fx.map_arg(node.args, env.__getitem__)
        kwargs = dict(fx.map_arg(node.kwargs, env.__getitem__))

        def attach(value: Any, node: fx.Node = node) -> None:
            env[node] = value

        if node.op == "placeholder":
            missing = object()
            given = next(inputs, missing)
            if given is missing:
                if not node.args:
                    raise FrontendError(f"the model also needs an input '{node.target}'")
                given = node.args[0]
            meta = given.to("meta") if isinstance(given, Tensor) else given
            attach(Value(meta) if isinstance(meta, Tensor) else meta)
            continue
        if node.op == "get_attr":
            attach(_attribute(clone, str(node.target), aliases))
            continue
        if node.op == "output":
            yield Step(node.name, None, None, args, {}, "model output"), attach
            continue
        step = _fx_step(node, args, kwargs, modules, aliases)
        if isinstance(step, Step):
            yield step, attach
        else:
            attach(step[0])


def _attribute(model: nn.Module, target: str, aliases: dict[str, str]) -> Any:
    value: Any = model
    for part in target.split("."):
        value = getattr(value, part)
    if isinstance(value, Tensor):
        return Value(value.detach().to("meta"), param=aliases.get(target))
    return value


def _fx_step(
    node: fx.Node,
    args: Any,
    kwargs: dict[str, Any],
    modules: dict[str, nn.Module],
    aliases: dict[str, str],
) -> Step | tuple[Any]:
    """The node as a step, or its plain Python value when it has no tensors in it."""
    target: Any = node.target
    if target is operator.getitem and not isinstance(args[0], (Value, torch.Size)):
        return (args[0][args[1]],)
    layer, resizable, name = "", False, None
    if node.op == "call_module":
        module = modules[target]
        run: Callable[..., Any] = module
        layer, resizable = target, True
    elif node.op == "call_method":
        run, name = _method(target), target
    else:
        run, name = target, function_name(target)
    try:
        if layer and type(module) in SHAPE_KEEPING and len(args) == 1 and not kwargs:
            out = data_of(args[0])  # on meta tensors a norm costs more than all rules together
        else:
            with torch.no_grad():
                out = run(*data_of(args), **data_of(kwargs))
    except Exception as error:
        raise FrontendError(f"{type(error).__name__}: {error}", node.name) from error
    if not _has_tensor(out) or not _has_value((args, kwargs)):
        return (_wrap(out),)
    literals, function = _literals(node.args), _elementwise(run, args, kwargs)
    reason = f"unknown operation {name or getattr(target, '__name__', target)}"
    if node.op == "call_module":
        found = operands_of(module)
        reason = f"unknown layer {type(module).__name__}"
        if found is None or kwargs or len(args) != 1:
            name = None
        else:
            name, tensors, settings = found
            owned = {t: _layer_tensor(module, target, t, aliases) for t in tensors}
            kwargs = {**owned, **settings}
    else:
        layer, resizable = _owner((args, kwargs), modules)
    call = None
    if name is not None and lookup(name) is not None:
        call = Call(name, out, literals, function, layer, resizable)
    return Step(node.name, out, call, args, kwargs, reason)


def _method(name: str) -> Callable[..., Any]:
    return lambda value, *args, **kwargs: getattr(value, name)(*args, **kwargs)


def _layer_tensor(module: nn.Module, prefix: str, name: str, aliases: dict[str, str]) -> Any:
    tensor = getattr(module, name, None)
    if tensor is None:
        return None
    full = f"{prefix}.{name}"
    return Value(tensor.detach().to("meta"), param=aliases.get(full))


def _owner(operands: Any, modules: dict[str, nn.Module]) -> tuple[str, bool]:
    """The module that owns the first parameter among the operands."""
    for value in _values(operands):
        if value.param is not None:
            prefix = value.param.rpartition(".")[0]
            return prefix or value.param, isinstance(modules.get(prefix), RESIZABLE)
    return "", False


def _values(structure: Any) -> Iterator[Value]:
    if isinstance(structure, Value):
        yield structure
    elif isinstance(structure, (list, tuple)):
        for item in structure:
            yield from _values(item)
    elif isinstance(structure, dict):
        yield from _values(list(structure.values()))


def _has_value(structure: Any) -> bool:
    return next(_values(structure), None) is not None


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_tensor(v) for v in value)
    if isinstance(value, dict):
        return any(_has_tensor(v) for v in value.values())
    return isinstance(value, Tensor)


def _wrap(value: Any) -> Any:
    """A result that carries no channels: tensors become values with fixed coordinates."""
    if isinstance(value, Tensor):
        return Value(value.to("meta"))
    if type(value) in (list, tuple):
        return type(value)(_wrap(v) for v in value)
    return value
