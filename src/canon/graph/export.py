"""The slow front end: torch.export, for forward passes with Python control flow that torch.fx cannot trace.

Sizes are numbers in an exported graph, so nothing tells whether the code computes them or has them written in; the rules
then treat them as written in, and pin where it matters.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from canon.graph.frontend import (
    Attach,
    FrontendError,
    Step,
    _elementwise,
    _has_tensor,
    _literals,
    _owner,
    _wrap,
    function_name,
)
from canon.graph.rules import Call, lookup
from canon.graph.state import Value

_NORMS = {
    "batch_norm": (0, 3, 4, 1, 2, 5, 6, 7),
    "instance_norm": (0, 3, 4, 1, 2, 5, 6, 7),
    "group_norm": (0, 1, 2, 3, 4),
}
"""Order in which the rules want an ATen norm's arguments."""


def export_steps(
    model: nn.Module, example: tuple[Any, ...], aliases: dict[str, str]
) -> Iterator[tuple[Step, Attach]]:
    """Walk the forward pass with torch.export."""
    try:
        with torch.no_grad():
            program = torch.export.export(model, example, strict=False)
    except Exception as error:
        message = str(error).strip().splitlines()
        raise FrontendError(f"{type(error).__name__}: {message[0] if message else ''}") from error
    signature = program.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    modules = dict(model.named_modules(remove_duplicate=False))
    env: dict[fx.Node, Any] = {}
    for node in program.graph.nodes:
        args = fx.map_arg(node.args, env.__getitem__)
        kwargs = dict(fx.map_arg(node.kwargs, env.__getitem__))

        def attach(value: Any, node: fx.Node = node) -> None:
            env[node] = value

        out = node.meta.get("val")
        if node.op == "placeholder":
            name = named.get(node.name)
            param = None if name is None else aliases.get(name)
            attach(Value(out, param=param) if isinstance(out, Tensor) else out)
        elif node.op == "output":
            yield Step(node.name, None, None, args, {}, "model output"), attach
        elif node.op != "call_function" or not _has_tensor(out):
            attach(_wrap(out))
        elif node.target is operator.getitem:
            attach(args[0][args[1]])
        else:
            yield _step(node, out, args, kwargs, modules), attach


def _step(
    node: fx.Node, out: Any, args: Any, kwargs: dict[str, Any], modules: dict[str, nn.Module]
) -> Step:
    name = function_name(node.target)
    target: Any = node.target
    layer, resizable = _owner((args, kwargs), modules)
    call = None
    if name is not None and lookup(name) is not None:
        function = _elementwise(target, args, kwargs)
        call = Call(name, out, _literals(node.args), function, layer, resizable)
        if name in _NORMS and isinstance(target, torch._ops.OpOverload):
            args = tuple(args[i] for i in _NORMS[name] if i < len(args))
    shown = getattr(target, "__name__", str(target)).partition(".")[0]
    return Step(node.name, out, call, args, kwargs, f"unknown operation {name or shown}")
