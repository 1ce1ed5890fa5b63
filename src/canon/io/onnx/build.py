"""From an ONNX graph to a `torch.fx.GraphModule` of ordinary layers and functions.

Every operator is a function of `operators/`, which calls back here: `layer` for what becomes a torch.nn module, `call`
for what becomes a function. What depends on no input is computed at once, within a budget. Shapes are followed on the
meta device, for two choices of the sizes that the file leaves open: nothing large is allocated, and it is known which
sizes the input decides.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from canon.errors import CanonError, FileFormatError, LimitError, UnsupportedModelError
from canon.io.onnx.assembly import Assembly
from canon.io.onnx.model import Model, Node, Port, StoredTensor
from canon.io.onnx.operators import TAKE_SIZES, lookup, on_sizes
from canon.io.onnx.tensors import TensorReader, dtype_of
from canon.io.onnx.values import Activation, Constant, Size, Sizes, Value

OPEN_SIZES: Final = ((2, 224), (3, 256))
"""Two choices for sizes that the file leaves open: of the first axis, and of others."""

MOST_NODES: Final = 50_000

MOST_ELEMENTS: Final = 1 << 31
"""Elements of one activation at those sizes."""

MOST_AXES: Final = 16

FOLDED_ELEMENTS: Final = 1 << 24
"""Elements of one tensor that is computed while the file is read."""

FOLDED_IN_ALL: Final = 1 << 27
"""Elements of all of them together."""

FAILURES: Final = (
    ArithmeticError, AssertionError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError,
    SyntaxError, TypeError, ValueError,
)  # fmt: skip
"""What Python and torch raise when operands do not fit."""


def build(model: Model, reader: TensorReader) -> fx.GraphModule:
    """The model as a module.

    Raises:
        UnsupportedModelError: It uses operators that Canon does not know; all of them are named.
        FileFormatError: Its parts do not fit together.
    """
    check_operators(model)
    builder = Builder(model, reader)
    for node in model.nodes:
        builder.step(node)
    return builder.finish()


def check_operators(model: Model) -> None:
    """Refuse what cannot be built, naming everything at once."""
    if len(model.nodes) > MOST_NODES:
        raise LimitError(f"the graph has {len(model.nodes)} nodes, and at most {MOST_NODES} are allowed")
    control = sorted({node.op[:40] for node in model.nodes if node.has_graph})
    if control:
        raise UnsupportedModelError(
            f"the model has control flow: {', '.join(control[:20])}",
            hint="Canon follows a fixed sequence of operations. Export the model without branches and loops",
        )
    unknown = sorted({f"{n.domain}.{n.op}".lstrip(".")[:60] for n in model.nodes if lookup(n.op, n.domain) is None})
    if unknown:
        raise UnsupportedModelError(
            f"the model uses {len(unknown)} operators that Canon does not read: {', '.join(unknown[:40])}",
            hint="docs/onnx.md lists those that it reads",
        )


class Builder:
    """Goes through the nodes of a file."""

    def __init__(self, model: Model, reader: TensorReader) -> None:
        self.model, self.reader, self.opset = model, reader, model.opset
        self.assembly = Assembly()
        self.values: dict[str, Value] = {}
        self.stored: dict[str, StoredTensor] = {}
        self.uses = Counter(name for node in model.nodes for name in node.inputs)
        self.uses.update(port.name for port in model.outputs)
        self.folded = 0
        self._transposed: dict[int, Constant] = {}
        self._made: dict[fx.Node, Activation] = {}
        for stored in model.tensors:
            if stored.name in self.stored:
                raise FileFormatError("two tensors have one name", where=stored.name[:80])
            self.stored[stored.name] = stored
        self.inputs = tuple(port for port in model.inputs if port.name not in self.stored)
        for port in self.inputs:
            self._input(port)

    def _input(self, port: Port) -> None:
        where = f"input '{port.name[:80]}'"
        if port.shape is None:
            raise UnsupportedModelError("the shape of the input is not given", where=where)
        if port.name in self.values:
            raise FileFormatError("two inputs have one name", where=where)
        dtype = dtype_of(port.dtype, where)
        hints = []
        for first, others in OPEN_SIZES:
            shape = [s if isinstance(s, int) and s > 0 else others if i else first for i, s in enumerate(port.shape)]
            self.reader.limits.check_shape(shape, dtype.itemsize, where)
            hints.append(torch.empty(shape, dtype=dtype, device="meta"))
        self.values[port.name] = self._result(self.assembly.placeholder(port.name), hints)

    def step(self, node: Node) -> None:
        """Add one node of the file."""
        try:
            results = self._apply(node)
        except CanonError as error:
            if error.where is None:
                error.where = node.where
            raise
        except FAILURES as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise FileFormatError(f"the node does not fit its operands: {reason[0][:300]}", where=node.where) from error
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            if name in self.values or name in self.stored:
                raise FileFormatError(f"two nodes make the value '{name[:80]}'", where=node.where)
            if index < len(results):
                self.values[name] = results[index]
            elif self.uses[name]:
                raise UnsupportedModelError(f"its output '{name[:80]}' is not supported", where=node.where)

    def _apply(self, node: Node) -> list[Any]:
        operands = [self.value(name) if name else None for name in node.inputs]
        result = None
        if any(isinstance(value, Sizes) for value in operands):
            result = on_sizes(self, node, operands)
            if result is None and node.op not in TAKE_SIZES:
                operands = [_settled(value) if isinstance(value, Sizes) else value for value in operands]
        if result is None:
            apply = lookup(node.op, node.domain)
            assert apply is not None, "checked before"
            result = apply(self, node, *operands)
        return result if isinstance(result, list) else [result]

    def value(self, name: str) -> Value:
        """What a name stands for."""
        if name not in self.values and name in self.stored:
            self.values[name] = Constant(self.reader.read(self.stored[name]), name)
        if name not in self.values:
            raise FileFormatError(f"the value '{name[:80]}' is read before anything makes it")
        return self.values[name]

    def known(self, node: fx.Node) -> Activation | None:
        """The activation that a node of the graph under construction gives."""
        return self._made.get(node)

    def single(self, value: Activation, node: Node) -> bool:
        """Whether nothing but this node reads one of its operands."""
        names = [name for name in node.inputs if self.values.get(name) is value]
        return len(names) == 1 and self.uses[names[0]] == 1

    def call(self, target: Callable[..., Any] | str, *args: Any, fold: bool = True, **kwargs: Any) -> Any:
        """Call a torch function, or a method by name.

        Gives an activation, or a constant where nothing depends on inputs, or a list of them.
        """
        operands = (args, kwargs)
        function = partial(_method, target) if isinstance(target, str) else target
        if fold and not _any(operands, (Activation, Size)):
            return self._fold(function, operands)
        hints = []
        for index in range(2):
            given, named = map_aggregate(operands, partial(_hint, index=index))
            with torch.device("meta"):
                hints.append(function(*given, **named))
        given, named = map_aggregate(operands, self._argument)
        create = self.assembly.graph.call_method if isinstance(target, str) else self.assembly.graph.call_function
        return self._result(create(target, given, named), hints)  # type: ignore[arg-type]

    def layer(
        self, node: Node, make: Callable[..., nn.Module], tensors: Mapping[str, Constant], x: Value, **settings: Any
    ) -> Activation:
        """Call a torch.nn layer that holds tensors of the file."""
        result = self.layer_call(node, make, tensors, settings, self.activation(x))
        assert isinstance(result, Activation), "such layers give one value"
        return result

    def layer_call(
        self,
        node: Node,
        make: Callable[..., nn.Module],
        tensors: Mapping[str, Constant],
        settings: Mapping[str, Any],
        *args: Any,
    ) -> Any:
        """Call a layer with any operands; gives a value or a list of them."""
        path, module = self.assembly.layer(node, make, tensors, settings)
        hints = [module(*map_aggregate(args, partial(_hint, index=index))) for index in range(2)]
        given = map_aggregate(args, self._argument)
        return self._result(self.assembly.graph.call_module(path, given), hints)

    def activation(self, value: Value) -> Activation:
        """A value as an operand of a node."""
        if isinstance(value, Sizes):
            value = _settled(value)
        if isinstance(value, Activation):
            return value
        meta = torch.empty_like(value.tensor, device="meta")
        return Activation(self.assembly.attribute(value), (meta, meta))

    def transposed(self, matrix: Constant) -> Constant:
        """A matrix with rows and columns exchanged; the same one for every user of the matrix."""
        key = id(matrix.tensor)
        if key not in self._transposed:
            self._transposed[key] = Constant(matrix.tensor.t().contiguous(), matrix.name)
        return self._transposed[key]

    def size(self, x: Activation, axis: int) -> Size:
        """The size of an axis, read from the activation whenever the model runs."""
        node = self.assembly.graph.call_method("size", (x.node, axis))
        return Size(node, (int(x.hints[0].shape[axis]), int(x.hints[1].shape[axis])))

    def spend(self, elements: int) -> None:
        """Take from the budget of what is computed while the file is read."""
        self.folded += elements
        if elements > FOLDED_ELEMENTS or self.folded > FOLDED_IN_ALL:
            raise LimitError(
                "the graph computes too much from constants alone", hint="Fold its constants before giving it to Canon"
            )

    def _fold(self, function: Callable[..., Any], operands: Any) -> Any:
        given, named = map_aggregate(operands, partial(_hint, index=0))
        with torch.device("meta"):
            out = function(*given, **named)
        self.spend(sum(piece.numel() for piece in ([out] if isinstance(out, Tensor) else out)))
        given, named = map_aggregate(operands, lambda v: v.tensor if isinstance(v, Constant) else v)
        with torch.no_grad():
            result = function(*given, **named)
        return Constant(result) if isinstance(result, Tensor) else [Constant(piece) for piece in result]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, (Activation, Size)):
            return value.node
        return self.assembly.attribute(value) if isinstance(value, Constant) else value

    def _result(self, node: fx.Node, hints: list[Any]) -> Any:
        if isinstance(hints[0], Tensor):
            for hint in hints:
                if hint.numel() > MOST_ELEMENTS or hint.ndim > MOST_AXES:
                    raise LimitError(f"an activation of shape {tuple(hint.shape)[:MOST_AXES]} is too large")
            self._made[node] = Activation(node, (hints[0], hints[1]))
            return self._made[node]
        graph = self.assembly.graph
        return [
            self._result(graph.call_function(operator.getitem, (node, index)), [hint[index] for hint in hints])
            for index in range(len(hints[0]))
        ]

    def finish(self) -> fx.GraphModule:
        """The finished module; `meta["inputs"]` says what it takes: name, element type and shape of every input."""
        found = [self.value(port.name) for port in self.model.outputs]
        if not any(isinstance(value, Activation) for value in found):
            raise UnsupportedModelError("no output of the model depends on its inputs")
        result = self.assembly.finish([self.activation(value).node for value in found])
        result.meta["inputs"] = tuple((p.name, dtype_of(p.dtype, p.name), p.shape) for p in self.inputs)
        return result


def _settled(value: Sizes) -> Constant:
    constant = value.constant()
    if constant is None:
        raise UnsupportedModelError(
            "a size that the input decides is used as a number", hint="Export the model with fixed sizes"
        )
    return constant


def _hint(value: Any, index: int) -> Any:
    if isinstance(value, (Activation, Size)):
        return value.hints[index]
    return torch.empty_like(value.tensor, device="meta") if isinstance(value, Constant) else value


def _any(operands: Any, kinds: tuple[type, ...]) -> bool:
    found: list[bool] = []
    map_aggregate(operands, lambda v: found.append(isinstance(v, kinds)))
    return any(found)


def _method(name: str, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    return getattr(x, name)(*args, **kwargs)
