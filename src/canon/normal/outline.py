"""An owner's program without its numbers: what a layout key keeps, so that a suspect can be brought into it."""

from __future__ import annotations

import base64
import json
import math
import operator
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from canon.graph.modules import ACTIVATIONS, ADAPTERS
from canon.graph.names import function_name
from canon.graph.opened import attention_width
from canon.graph.rules import rule_names
from canon.normal.lower import program_graph
from canon.normal.nodes import MOST_NODES, NotNormal

MOST_TEXT: Final = 1 << 24
"""Characters that a program may take."""

PLACES: Final[Mapping[str, Any]] = {
    "torch": torch, "functional": nn.functional, "nn": torch._C._nn, "operator": operator
}  # fmt: skip
LAYERS: Final = {k.__name__: k for k in (*ADAPTERS, *ACTIVATIONS) if not issubclass(k, nn.RNNBase)}
"""What can be made again of its settings; recurrent layers keep lists of their weights besides."""

MAKERS: Final = ("arange", "ones", "zeros")
"""Functions that make a tensor of sizes."""

ASKED: Final = ("shape", "device", "dtype")
"""What may be asked of a value."""

LONGEST: Final = 1 << 20
"""Sizes that a program may write down for a tensor it makes; those it takes from its input are the example's."""

PRODUCTS: Final = ("bmm", "einsum")
"""Functions that channels are not followed through, and that programs hold all the same."""

METHODS: Final = frozenset({"size", "dim", "contiguous", "to", "float", "type_as"})


@dataclass(frozen=True)
class Outline:
    """A program as data: operations in order, and the settings and shapes of layers."""

    text: str
    """JSON."""

    def packed(self) -> str:
        """As a key keeps it."""
        return base64.b64encode(zlib.compress(self.text.encode(), 9)).decode()

    @staticmethod
    def unpacked(packed: Any) -> Outline:
        """From a key, which may come from anybody; ValueError where it is damaged."""
        if not isinstance(packed, str):
            raise ValueError("the program is no text")
        inflate = zlib.decompressobj()
        try:
            data = inflate.decompress(base64.b64decode(packed, validate=True), MOST_TEXT)
        except zlib.error as error:
            raise ValueError(f"the program is damaged: {error}") from error
        if inflate.unconsumed_tail or not inflate.eof:
            raise ValueError("the program is damaged, or larger than it may be")
        outline = Outline(data.decode())
        outline.model()
        return outline

    def model(self) -> fx.GraphModule:
        """The program as a model whose tensors have shapes and no numbers.

        Raises:
            ValueError: It holds something that a program cannot.
        """
        try:
            return _Reader(json.loads(self.text)).model()
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, RecursionError, SyntaxError) as error:
            raise ValueError(f"the program does not fit together: {error!r:.80}") from error


def outline_of(model: nn.Module, example: Any = None) -> Outline | None:
    """A model's program; None where it holds something that cannot be told without code."""
    try:
        graph = program_graph(model, example)
        layers: dict[str, Any] = {}
        numbers: dict[fx.Node, int] = {}
        nodes = []
        for node in graph.nodes:
            nodes.append(_operation(model, node, numbers, layers))
            numbers[node] = len(numbers)
        return Outline(json.dumps({"nodes": nodes, "layers": layers}, separators=(",", ":"), allow_nan=False))
    except (NotNormal, _NoData, ValueError):
        return None


class _NoData(Exception):
    """Something that is not data."""


def _operation(model: nn.Module, node: fx.Node, numbers: Mapping[fx.Node, int], layers: dict[str, Any]) -> list[Any]:
    target: Any = node.target
    if node.op == "call_module":
        layers.setdefault(str(target), _layer(model.get_submodule(str(target))))
    elif node.op == "get_attr":
        value: Any = model
        for part in str(target).split("."):
            value = getattr(value, part, None)  # a constant of the code stands in no model
        if not isinstance(value, Tensor):
            raise _NoData
        layers.setdefault(str(target), ["tensor", _kind(value)])
    elif node.op == "call_method":
        if target not in METHODS and target not in rule_names():
            raise _NoData
    elif node.op == "call_function":
        target = _function(target)
    args, kwargs = _plain(node.args, numbers), _plain(dict(node.kwargs), numbers)
    if target == "torch.stochastic_depth":
        args = dict(args)
        target, args, kwargs = "functional.dropout", [args["tuple"][0], 0.0, False], {"dict": []}
    return [node.op, str(target), args, kwargs]


@cache
def _allowed() -> dict[str, Callable[..., Any]]:
    found = {}
    for place, space in PLACES.items():
        for name in rule_names():
            function = getattr(space, name, None)
            if callable(function) and function_name(function) == name:
                found[f"{place}.{name}"] = function
    for name in ("getitem", "iadd", "imul", "isub", "floordiv"):
        found[f"operator.{name}"] = getattr(operator, name)
    found["builtin.getattr"] = getattr
    found["opened.attention_width"] = attention_width
    for name in rule_names():
        packet = getattr(torch.ops.aten, name, None)
        for overload in () if packet is None else [o for o in packet.overloads() if "out" not in o]:
            found[f"aten.{name}.{overload}"] = getattr(packet, overload)
    return found | {f"torch.{name}": getattr(torch, name) for name in (*MAKERS, *PRODUCTS)}


def _function(target: Any) -> str:
    if function_name(target) == "stochastic_depth":
        return "torch.stochastic_depth"
    for name, function in _allowed().items():
        if function is target:
            return name
    raise _NoData


def _layer(module: nn.Module) -> list[Any]:
    kind = type(module).__name__
    if LAYERS.get(kind) is not type(module):
        raise _NoData
    settings = {k: _plain(v, {}) for k, v in vars(module).items() if not k.startswith("_") and k != "training"}
    held: Any = [("p", module._parameters), ("b", module._buffers)]
    tensors = {key: [sort, None if t is None else _kind(t)] for sort, kept in held for key, t in kept.items()}
    return [kind, settings, tensors]


def _kind(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), *tensor.shape]


def _plain(value: Any, numbers: Mapping[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return {"node": numbers[value]}
    if isinstance(value, tuple | list):
        return {"tuple" if isinstance(value, tuple) else "list": [_plain(v, numbers) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[str(k), _plain(v, numbers)] for k, v in value.items()]}
    if isinstance(value, slice):
        return {"slice": [_plain(v, numbers) for v in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"rest": 0}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, str | int | float | bool | type(None)):
        return value
    raise _NoData


class _Reader:
    """Makes a model of what a file says, and trusts none of it: nothing is called but what the tables hold."""

    def __init__(self, data: Any) -> None:
        self.nodes, self.layers = data["nodes"], data["layers"]
        if len(self.nodes) > MOST_NODES:
            raise ValueError("the program has too many operations")
        self.made: list[fx.Node] = []

    def model(self) -> fx.GraphModule:
        graph = fx.Graph()
        for op, target, args, kwargs in self.nodes:
            given, named = self.value(args), self.value(kwargs)
            if op not in ("placeholder", "call_module", "get_attr", "call_function", "call_method", "output"):
                raise ValueError("an operation of another kind")
            if op == "call_function":
                function: Any = _allowed()[target]
                if function is getattr and (len(given) != 2 or given[1] not in ASKED):
                    raise ValueError("something is asked of a value that may not be")
                if target.removeprefix("torch.") in MAKERS and _product(given) > LONGEST:
                    raise ValueError("a tensor that may be too large")
            elif op == "call_method":
                function = target
                if target not in METHODS and target not in rule_names():
                    raise ValueError("a method that is not known")
            else:
                function = _name(target)
                if op in ("call_module", "get_attr") and target not in self.layers:
                    raise ValueError("a layer that is not told")
            self.made.append(graph.create_node(op, function, tuple(given), dict(named)))
        modules = {_name(name): self.layer(entry) for name, entry in self.layers.items()}
        result = fx.GraphModule(modules, graph)
        return result.eval()

    def value(self, entry: Any) -> Any:
        if not isinstance(entry, dict):
            if isinstance(entry, str | int | float | bool | type(None)):
                return entry
            return tuple(self.value(e) for e in entry)
        ((kind, content),) = entry.items()
        if kind == "node":
            return self.made[content] if 0 <= content < len(self.made) else self._fail()
        if kind in ("tuple", "list"):
            return (tuple if kind == "tuple" else list)(self.value(e) for e in content)
        if kind == "dict":
            return {str(k): self.value(v) for k, v in content}
        if kind == "slice":
            return slice(*(self.value(e) for e in content))
        if kind == "dtype":
            found = getattr(torch, content)
            return found if isinstance(found, torch.dtype) else self._fail()
        return Ellipsis if kind == "rest" else self._fail()

    def _fail(self) -> Any:
        raise ValueError("an operand of another kind")

    def layer(self, entry: Any) -> Any:
        if entry[0] == "tensor":
            return _empty(entry[1])
        kind, settings, tensors = LAYERS[entry[0]], entry[1], entry[2]
        made: Any = kind.__new__(kind)
        nn.Module.__init__(made)
        for key, setting in settings.items():
            if key.startswith("_") or not key.isidentifier() or callable(getattr(kind, key, None)):
                raise ValueError("a setting that no layer has")
            setattr(made, key, self.value(setting))
        for key, (sort, shape) in tensors.items():
            if not key.isidentifier() or key.startswith("_"):
                raise ValueError("a tensor that no layer has")
            tensor = None if shape is None else _empty(shape)
            if sort == "p":
                made.register_parameter(key, None if tensor is None else nn.Parameter(tensor, requires_grad=False))
            else:
                made.register_buffer(key, tensor)
        if hasattr(made, "padding") and isinstance(made.padding, tuple) and "padding_mode" in settings:
            made._reversed_padding_repeated_twice = tuple(p for p in reversed(made.padding) for _ in range(2))
        return made.eval()


def _product(sizes: Any) -> float:
    """All numbers in some sizes multiplied; sizes of values count as 1, and what is worked out of them is endless."""
    if isinstance(sizes, tuple | list):
        return math.prod(map(_product, sizes))
    if isinstance(sizes, fx.Node):
        return 1 if sizes.target in (operator.getitem, "size", getattr) else math.inf
    return max(1, abs(sizes)) if isinstance(sizes, int | float) else 1


def _name(name: Any) -> str:
    """A name that a program may hold; it becomes text of Python."""
    import keyword

    parts = str(name).split(".")
    if any(not p.isascii() or not p.replace("_", "a").isalnum() or keyword.iskeyword(p) for p in parts):
        raise ValueError("a name that no program has")
    return str(name)


def _empty(shape: Any) -> Tensor:
    dtype, *sizes = shape
    found = getattr(torch, dtype)
    if not isinstance(found, torch.dtype) or any(type(n) is not int or not 0 <= n < 1 << 40 for n in sizes):
        raise ValueError("a tensor of another kind")
    return torch.empty(sizes, dtype=found, device="meta")
