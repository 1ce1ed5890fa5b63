"""TorchScript modules that are at hand, as programs of torch.fx: their graph is read, and nothing of it is run.

Conditions and numbers of turns must be known from what is written down (`training`, settings). A program that asks
for the sizes of its input before it knows where to go on is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from canon.errors import TraceError

MOST_TURNS: Final = 1_000
SAME: Final = frozenset("prim::NumToTensor aten::Int aten::ScalarImplicit aten::IntImplicit aten::FloatImplicit "
                        "prim::unchecked_cast aten::Float aten::Bool".split())  # fmt: skip
"""Kinds of nodes whose output is their input here."""


def _append(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


def _less(one: Any, two: Any, times: Any = 1) -> Any:
    return two - times * one


_OPERATORS: Final = (
    "is_ is_not not_ eq ne lt gt le ge getitem add sub mul floordiv mod neg contains and_ or_ pow truediv".split()
)
_CALLED: Final = (
    "__is__ __isnot__ __not__ eq ne lt gt le ge __getitem__ add sub mul floordiv remainder neg __contains__ __and__ "
    "__or__ pow div".split()
)
PLAIN: Final[Mapping[str, Callable[..., Any]]] = {
    **{f"aten::{kind}": getattr(operator, name) for kind, name in zip(_CALLED, _OPERATORS, strict=True)},
    "aten::len": len, "aten::list": list, "aten::rsub": _less, "aten::append": _append,
    "aten::floor_divide": operator.floordiv,
}  # fmt: skip
"""What is computed with plain numbers and lists."""

LISTS: Final = ("aten::len", "aten::__getitem__", "aten::list", "aten::append")
"""What is done with lists, whatever is in them."""

CONVOLUTIONS: Final = (
    (functional.conv1d, functional.conv2d, functional.conv3d),
    (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d),
)


def program_of_script(module: torch.jit.ScriptModule) -> fx.GraphModule:
    """What a TorchScript module computes, with its tensors under their names.

    Raises:
        TraceError: Its flow depends on what it is given, or it uses what has no counterpart in a program of torch.fx.
    """
    reader = _Reader(module)
    try:
        return reader.read()
    except (TypeError, ValueError, RuntimeError, KeyError, IndexError, AttributeError) as error:
        why = error if isinstance(error, _Unread) else f"it uses '{reader.kind}' in a way that cannot be followed"
        raise TraceError(
            f"the TorchScript module cannot be read as a program: {why}",
            hint="Pass the module that it was made from, or what torch.jit.trace makes of it. Of a file, "
            "canon.load(path, architecture) reads the weights",
        ) from error


class _Unread(ValueError):
    """What has no counterpart in a program of torch.fx, in words."""


class _Reader:
    def __init__(self, module: torch.jit.ScriptModule) -> None:
        self.module, self.graph = module, fx.Graph()
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            self.names.setdefault(tensor.data_ptr() if tensor.numel() else id(tensor), name)
        self.held: dict[str, fx.Node] = {}
        self.values: dict[str, Any] = {}
        self.kind = "forward"
        """What is being read: a node's kind."""
        self.sizes = set[fx.Node]()
        """Values of the program that are numbers."""

    def read(self) -> fx.GraphModule:
        """The whole program."""
        script = self.method(self.module, "forward")
        names = [value.debugName().replace(".", "_") for value in [*script.inputs()][1:]]
        given = [self.graph.placeholder(name if name.isidentifier() else "x") for name in names]
        self.graph.output(self.operand(self.called(script, [self.module, *given])))
        self.graph.eliminate_dead_code()
        return fx.GraphModule(self.tensors, self.graph).eval()

    def method(self, module: Any, name: str) -> Any:
        """The graph of a module's method."""
        return module._c._get_method(name).graph

    def called(self, script: Any, given: list[Any]) -> Any:
        """What a graph gives for some operands."""
        before, self.values = self.values, {v.debugName(): x for v, x in zip(script.inputs(), given, strict=True)}
        self.block(script)
        found = [self.values[value.debugName()] for value in script.outputs()]
        self.values = before
        return found[0] if len(found) == 1 else tuple(found)

    def block(self, block: Any) -> None:
        for node in block.nodes():
            given = [self.values[value.debugName()] for value in node.inputs()]
            found = self.node(node, given)
            outputs = [*node.outputs()]
            for value, result in zip(outputs, (found,) if len(outputs) == 1 else found if outputs else (), strict=True):
                self.values[value.debugName()] = result

    def node(self, node: Any, given: list[Any]) -> Any:
        """What a node gives; several values where it has several outputs."""
        kind = self.kind = node.kind()
        if kind == "prim::Constant":
            function = node.output().type().kind() == "FunctionType"
            return self.known(node.s("name")) if function else node.output().toIValue()
        if kind == "prim::Uninitialized":
            return None
        if kind == "prim::CallMethod":
            return self.called(self.method(given[0], node.s("name")), given)
        if kind == "prim::CallFunction":
            return self.call(given[0], given[1:], {})
        if kind == "aten::format":
            return given[0]  # what an error would say
        if kind == "prim::GetAttr":
            return getattr(given[0], node.s("name"))
        if kind in ("prim::ListConstruct", "prim::TupleConstruct"):
            return list(given) if kind == "prim::ListConstruct" else tuple(given)
        if kind in ("prim::ListUnpack", "prim::TupleUnpack"):
            whole, count = given[0], len([*node.outputs()])
            parts = [operator.getitem] * count if not isinstance(whole, fx.Node) else None
            values = [
                whole[i] if parts else self.graph.call_function(operator.getitem, (whole, i)) for i in range(count)
            ]
            return values[0] if count == 1 else values
        if kind == "prim::If":
            return self.chosen(node, given[0])
        if kind == "prim::Loop":
            return self.turns(node, *given)
        if kind in SAME:
            return given[0]
        held = kind in LISTS and isinstance(given[0], list | tuple)
        if kind in PLAIN and (held or not _asked(given)):
            return PLAIN[kind](*given)
        if kind in PLAIN and not _asked([v for v in given if not (isinstance(v, fx.Node) and v in self.sizes)]):
            return self.size(PLAIN[kind], given)
        if kind in ("prim::device", "prim::dtype"):
            return self.graph.call_function(getattr, (given[0], kind.removeprefix("prim::")))
        if not kind.startswith("aten::"):
            raise _Unread(f"it uses '{kind}'")
        return self.operation(node, given)

    def known(self, name: str) -> Any:
        """One of torch's own functions, which scripts call by name."""
        if not hasattr(functional, name):
            raise _Unread(f"it calls '{name}', which is no function of torch.nn.functional")
        return getattr(functional, name)

    def operation(self, node: Any, given: list[Any]) -> Any:
        """An operation of torch."""
        name, _, overload = node.schema().partition("(")[0].removeprefix("aten::").partition(".")
        if name == "_convolution":
            x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = given[:9]
            function: Any = CONVOLUTIONS[bool(transposed)][weight.ndim - 3]
            rest = (output_padding, groups, dilation) if transposed else (dilation, groups)
            return self.call(function, [x, weight, bias, stride, padding, *rest], {})
        function = getattr(getattr(torch.ops.aten, name), overload or "default")
        if name == "size" and overload == "int":
            return self.size(function, given)
        args, kwargs = [], {}
        for told, value in zip(torch._C.parse_schema(node.schema()).arguments, given, strict=True):
            if told.kwarg_only:
                kwargs[told.name] = value
            else:
                args.append(value)
        found = self.call(function, args, kwargs)
        count = len([*node.outputs()])
        return found if count == 1 else [self.graph.call_function(operator.getitem, (found, i)) for i in range(count)]

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> fx.Node:
        given = tuple(self.operand(value) for value in args)
        return self.graph.call_function(function, given, {key: self.operand(value) for key, value in kwargs.items()})

    def size(self, function: Any, given: list[Any]) -> fx.Node:
        """A number that is worked out while the program runs."""
        made = self.call(function, given, {})
        self.sizes.add(made)
        return made

    def operand(self, value: Any) -> Any:
        """A value as the program has it: tensors under their names."""
        if isinstance(value, list | tuple):
            return type(value)(self.operand(part) for part in value)
        if not isinstance(value, Tensor):
            return value
        name = self.names.get(value.data_ptr() if value.numel() else id(value), f"constant_{len(self.tensors)}")
        if name not in self.held:
            self.tensors[name] = (
                value
                if isinstance(value, nn.Parameter)
                else nn.Parameter(value, False)
                if value.is_floating_point()
                else value
            )
            self.held[name] = self.graph.get_attr(name)
        return self.held[name]

    def chosen(self, node: Any, condition: Any) -> Any:
        blocks = [*node.blocks()]
        if isinstance(condition, fx.Node):  # a check of what it is given, which raises where it does not hold
            open_ones = [block for block in blocks if all(n.kind() != "prim::RaiseException" for n in block.nodes())]
            if len(open_ones) != 1:
                raise _Unread("where it goes on depends on what it is given")
            (block,) = open_ones
        else:
            block = blocks[0 if condition else 1]
        self.block(block)
        found = [self.values[value.debugName()] for value in block.outputs()]
        return found[0] if len(found) == 1 else found

    def turns(self, node: Any, most: Any, goes_on: Any, *carried: Any) -> Any:
        (block,) = node.blocks()
        counter, *inside = block.inputs()
        turn, values = 0, list(carried)
        while not _asked([most, goes_on]) and goes_on and turn < most:
            if turn == MOST_TURNS:
                raise _Unread("a loop goes on for too long")
            self.values[counter.debugName()] = turn
            self.values.update({value.debugName(): held for value, held in zip(inside, values, strict=True)})
            self.block(block)
            goes_on, *values = (self.values[value.debugName()] for value in block.outputs())
            turn += 1
        if _asked([most, goes_on]):
            raise _Unread("how often it does something depends on what it is given")
        return values[0] if len(values) == 1 else values


def _asked(values: Any) -> bool:
    """Whether a value of the forward pass is among some."""
    return any(isinstance(v, fx.Node | Tensor) or (isinstance(v, list | tuple) and _asked(v)) for v in values)
