"""Functions of one number, known by their values: however ReLU, SiLU or GELU was written, it is the same curve.

Operations that treat every number by itself are followed from a value on. What they make together is asked at many
numbers up to 100 on both sides, and known again if it is a function of the table. Which it is beyond that, and where
it differs by less than a rounding of float32, the outputs of the models must show.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping
from math import inf
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from canon.graph.modules import ACTIVATIONS, hooked
from canon.graph.names import function_name
from canon.normal.nodes import Node
from canon.normal.patterns import scaled

_POSITIVE: Final = torch.cat([torch.logspace(-6, 2, 161, dtype=torch.float64), torch.linspace(0.1, 8, 80).double()])
GRID: Final = torch.cat([_POSITIVE, -_POSITIVE, torch.zeros(1, dtype=torch.float64)])
PRECISION: Final = 1e-6
"""Curves that differ by less, or by less of the argument, are one."""

Label = tuple[Hashable, ...]
KNOWN: Final[Mapping[Label, Callable[[Tensor], Tensor]]] = {
    ("relu",): functional.relu,
    ("sigmoid", ()): torch.sigmoid,
    ("silu", ()): functional.silu,
    ("tanh", ()): torch.tanh,
    ("gelu", (("approximate", "none"),)): functional.gelu,
    ("gelu", (("approximate", "tanh"),)): lambda x: functional.gelu(x, approximate="tanh"),
    ("hardswish", ()): functional.hardswish,
    ("hardsigmoid", ()): functional.hardsigmoid,
    ("clamp", 0.0, 6.0): functional.relu6,
    ("mish", ()): functional.mish,
    ("softplus", (("beta", 1.0), ("threshold", 20.0))): functional.softplus,
    ("elu", (("alpha", 1.0),)): functional.elu,
    ("abs", ()): torch.abs,
}
"""Functions that are known again, by the name that a program's values have for them."""

_LABELS: Final = tuple(KNOWN)
_LARGEST: Final = int(GRID.argmax())
_VALUES: Final = torch.stack([function(GRID) for function in KNOWN.values()])
_ALLOWED: Final = PRECISION * (1 + GRID.abs())

NAMES: Final = frozenset(
    "relu relu6 hardtanh clamp clip clamp_min clamp_max threshold leaky_relu rrelu elu celu selu gelu silu sigmoid "
    "tanh hardswish hardsigmoid mish softplus softsign logsigmoid hardshrink softshrink tanhshrink abs neg exp expm1 "
    "log log1p sqrt rsqrt square pow erf erfc reciprocal sign heaviside minimum maximum fmin fmax max min where "
    "masked_fill gt ge lt le eq ne logical_not zeros_like ones_like full_like add sub mul div truediv true_divide "
    "multiply divide subtract rsub negative absolute logaddexp hypot float double addcmul addcdiv lerp".split()
)
"""Operations that treat every number by itself, as torch and Python call them."""

MOST_BASES: Final = 12
"""From how many values at most an operation is followed."""

Bases = dict[Node, Tensor]
"""The values of one operation over the grid, by the value that the grid stands for."""


def _functions() -> dict[Any, str]:
    spaces: tuple[Any, ...] = (torch, functional, torch.special, operator)
    found = {getattr(space, name): name for name in NAMES for space in spaces if hasattr(space, name)}
    return {**found, torch.special.expit: "sigmoid", operator.pow: "pow"}


FUNCTIONS: Final = _functions()


class Curves:
    """What every value is as a function of the values that it was made from; `said` has what was known again."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self._known: dict[Node, Bases] = {}
        self.said: list[str] = []

    def follow(self, node: fx.Node, made: Node, values: Mapping[fx.Node, Node]) -> Node:
        """Take note of an operation; gives the function of the table that it is, or the operation as it was."""
        bases = self._bases(node, values)
        if bases:
            self._known[made] = bases
        for base, curve in bases.items():
            found = _known(curve)
            if found is None or (made.inputs == [base] and made.label == found[0]):
                continue
            label, factor = found
            named = Node("call", [base], label, name=made.name, shape=made.shape)
            if factor != 1 and made.kind == "affine":
                continue
            named = named if factor == 1 else scaled(named, factor)
            self._known[named] = bases
            self.said.append(f"'{made.name}' is {label[0]}, written in another way")
            return named
        return made

    def _bases(self, node: fx.Node, values: Mapping[fx.Node, Node]) -> Bases:
        """The curve that an operation is of each value that all its operands are made from, the nearest first."""
        call = self._call(node)
        operands = [n for n in node.all_input_nodes if _setting(n) is None]
        if call is None or not operands:
            return {}
        given: dict[fx.Node, Bases | Tensor] = {}
        for operand in operands:
            value = values[operand]
            if value.kind == "tensor":
                if value.value.numel() != 1 or value.value.is_meta:
                    return {}
                given[operand] = value.value.detach().double().reshape(())
            else:
                given[operand] = {value: GRID, **self._known.get(value, {})}
        known = [bases for bases in given.values() if isinstance(bases, dict)]
        if not known:
            return {}
        shape = max((values[o].shape for o in operands if isinstance(values[o].shape, tuple)), key=len, default=None)
        common = [base for base in known[0] if all(base in other for other in known[1:]) and base.shape == shape]
        return {base: curve for base in common[:MOST_BASES] if (curve := _asked(call, node, given, base)) is not None}

    def _call(self, node: fx.Node) -> Callable[..., Any] | None:
        """What an operation does to plain tensors; None where it is none of those above."""
        if node.op == "call_function":
            name = FUNCTIONS.get(node.target) if isinstance(node.target, Hashable) else None
            if isinstance(node.target, torch._ops.OpOverload):
                name = function_name(node.target)
                name = name if name is not None and name.removesuffix("_") in NAMES else None
            if name in ("max", "min") and len(node.all_input_nodes) < 2:
                return None  # the largest of all numbers
            return node.target if name is not None and callable(node.target) else None
        if node.op == "call_method":
            name = str(node.target)
            plain = name.removesuffix("_") in NAMES and name not in ("max", "min")
            if plain or name in ("to", "type_as"):
                return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)
            return None
        module = self._modules.get(str(node.target)) if node.op == "call_module" else None
        return None if module is None else _layer(module)


def _layer(module: nn.Module) -> Callable[..., Any] | None:
    """An activation of torch without tensors of its own."""
    named = ACTIVATIONS.get(type(module)) in NAMES
    plain = named and not hooked(module) and not [*module.parameters(), *module.buffers()]
    return type(module).forward.__get__(module) if plain else None


def _setting(node: fx.Node) -> Any:
    """A value's type or device, where that is all that is asked of it."""
    if node.op != "call_function" or node.target is not getattr:
        return None
    return {"dtype": torch.float64, "device": torch.device("cpu")}.get(str(node.args[1]))


@torch.no_grad()
def _asked(
    call: Callable[..., Any], node: fx.Node, given: Mapping[fx.Node, Bases | Tensor], base: Node
) -> Tensor | None:
    def number(operand: fx.Node) -> Any:
        held = given.get(operand)
        if held is None:
            return _setting(operand)
        return (held[base] if isinstance(held, dict) else held).clone()  # some operations change their operands

    try:
        made = call(*fx.map_arg(node.args, number), **fx.map_arg(node.kwargs, number))
    except Exception:  # torch raises anything where operands do not fit
        return None
    return made if isinstance(made, Tensor) and made.shape == GRID.shape else None


def _known(curve: Tensor) -> tuple[Label, float] | None:
    """The function of the table that has these values, and the factor that they have besides."""
    if curve.dtype == torch.bool or curve.is_complex():
        return None
    factors = curve[_LARGEST].double() / _VALUES[:, _LARGEST]
    factors = torch.where((factors - 1).abs() <= PRECISION, 1.0, factors)[:, None]
    same = ((curve.double() - factors * _VALUES).abs() <= _ALLOWED * factors.abs()).all(1) & (factors[:, 0] != 0)
    place = same.nonzero()
    return (_LABELS[int(place[0])], float(factors[place[0]])) if len(place) else _bent_line(curve.double())


def _bent_line(curve: Tensor) -> tuple[Label, float] | None:
    """A leaky ReLU: two straight lines that meet at zero."""
    above, below = (float(curve[place] / GRID[place]) for place in (_LARGEST, int(GRID.argmin())))
    if not 0 < abs(above) < inf or above == below:
        return None
    expected = above * GRID.clamp(min=0) + below * GRID.clamp(max=0)
    if not bool(((curve - expected).abs() <= _ALLOWED * max(abs(above), abs(below))).all()):
        return None
    return ("leaky_relu", (("negative_slope", round(below / above, 6)),)), above
