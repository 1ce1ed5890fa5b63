"""The slow front end: torch.export, for forward passes with Python control flow that torch.fx cannot trace.

Sizes are numbers in an exported graph, so nothing tells whether the code computes them or has them written in; the
rules then treat them as written in, and pin where it matters.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from canon._quiet import quiet
from canon.errors import reason_of
from canon.graph.frontend import Attach, Elementwise, Environment, FrontendError, Operation, owner
from canon.graph.inputs import map_tensors
from canon.graph.names import function_name, writes_in_place
from canon.graph.recorded import Program
from canon.graph.rules import Call, lookup
from canon.graph.values import Value, fixed, has_tensor, values_in

_NORMS = {
    "batch_norm": (0, 3, 4, 1, 2, 5, 6, 7),
    "instance_norm": (0, 3, 4, 1, 2, 5, 6, 7),
    "group_norm": (0, 1, 2, 3, 4),
}
"""Order in which the rules want an ATen norm's arguments."""


def export_program(model: nn.Module, example: tuple[Any, ...]) -> Program:
    """The forward pass as torch.export sees it."""
    try:
        if any(tensor.is_meta for tensor in model.parameters()):
            example = map_tensors(lambda x: x.to("meta"), example)
        with torch.no_grad(), quiet():
            program = torch.export.export(model, example, strict=False)
    except Exception as error:
        raise FrontendError(f"{type(error).__name__}: {reason_of(error)}") from error
    signature = program.graph_signature
    return Program(program.graph, {**signature.inputs_to_parameters, **signature.inputs_to_buffers})


def program_operations(
    model: nn.Module, program: Program, aliases: dict[str, str]
) -> Iterator[tuple[Operation, Attach]]:
    """Walk the forward pass of a program."""
    modules = dict(model.named_modules(remove_duplicate=False))
    environment = Environment(program.graph)
    for node in program.graph.nodes:
        args, kwargs = environment.operands(node)
        out = node.meta.get("val")
        if node.op == "placeholder":
            name = program.names.get(node.name)
            param = None if name is None else aliases.get(name)
            environment.set(node, Value(out, param=param) if isinstance(out, Tensor) else out)
        elif node.op == "output":
            yield Operation(node.name, None, None, args, {}, "model output"), lambda value: None
        elif node.target is operator.getitem:
            environment.note(node, "getitem", False)
            environment.set(node, args[0][args[1]])
        elif node.target is torch.ops.aten._assert_tensor_metadata.default:
            environment.set(node, None)  # says what dtype and device are, never how many channels
        elif node.op != "call_function" or not (has_tensor(out) or values_in((args, kwargs))):
            environment.set(node, fixed(out))
        else:
            in_place = writes_in_place(node, None)
            step = _step(node, out, args, kwargs, modules, environment, in_place)

            def attach(value: Any, node: fx.Node = node, in_place: bool = in_place) -> None:
                environment.attach(node, value, in_place)

            yield step, attach


def _step(
    node: fx.Node,
    out: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    modules: dict[str, nn.Module],
    environment: Environment,
    in_place: bool,
) -> Operation:
    name = function_name(node.target)
    target: Any = node.target
    shown = name or getattr(target, "__name__", str(target)).partition(".")[0]
    stale = environment.note(node, name, in_place)
    if in_place and any(value.param is not None for value in values_in(args[:1])):
        return Operation(node.name, out, None, args, kwargs, "the forward pass changes a tensor of the model")
    call = None
    if name is not None and has_tensor(out) and lookup(name) is not None:
        function = Elementwise(target, args, kwargs)
        layer, resizable = owner(node, (args, kwargs), modules)
        call = Call(name, out, function, layer, resizable)
        if name in _NORMS:
            args = tuple(args[i] for i in _NORMS[name] if i < len(args))
    return Operation(node.name, out, call, args, kwargs, f"unknown operation {shown}", (), stale)
