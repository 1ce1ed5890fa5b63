"""Which operation a graph node is: by identity, never by the name a function happens to have."""

from __future__ import annotations

import inspect
import operator
from functools import cache
from typing import Any

import torch
from torch import fx, nn

from canon.graph.opened import attention, attention_weights, attention_width
from canon.graph.rules import rule_names

_IN_PLACE_OPERATORS = frozenset(
    getattr(operator, name)
    for name in "iadd isub imul itruediv ifloordiv ipow imod iand ior ixor imatmul ilshift irshift setitem".split()
)
_OTHER_SIGNATURE = frozenset({torch.batch_norm, torch.instance_norm})
"""Functions of torch whose operands stand in another order than those of the function of that name in torch.nn."""


@cache
def _functions() -> dict[Any, str]:
    found: dict[Any, str] = {}
    spaces: list[Any] = [torch, nn.functional, torch._C._nn, operator]
    for name in rule_names():
        for space in spaces:
            function = getattr(space, name, None)
            if callable(function) and function not in _OTHER_SIGNATURE:
                found[function] = name
    return {**found, attention: "attention", attention_weights: "attention", attention_width: "attention_width"}


def function_name(target: Any) -> str | None:
    """The rule name of a function, or None when it is not one we know."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name.split("::")[1]) if target.namespace == "aten" else None
    try:
        name = _functions().get(target)
    except TypeError:
        return None
    if name is None and getattr(target, "__name__", "") == "stochastic_depth":
        module = str(getattr(target, "__module__", ""))
        return "stochastic_depth" if module.startswith("torchvision.") else None
    return name


@cache
def _inplace_position(function: Any) -> int | None:
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    return parameters.index("inplace") if "inplace" in parameters else None


def writes_in_place(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether a node changes its first operand."""
    target: Any = node.target
    if module is not None:
        return bool(getattr(module, "inplace", False))
    if node.op == "call_method":
        return bool(target.endswith("_")) and not target.endswith("__")
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable)
    if target in _IN_PLACE_OPERATORS:
        return True
    name = str(getattr(target, "__name__", ""))
    if name.endswith("_") and not name.endswith("__"):
        return True
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    if len(node.args) < 2 or not str(getattr(target, "__module__", "")).startswith("torch"):
        return False
    position = _inplace_position(target)
    return position is not None and len(node.args) > position and bool(node.args[position])
