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

from canon.errors import SIZE_HINT, CanonError, FileFormatError, LimitError, UnsupportedModelError, reason_of
from canon.io.onnx.assembly import Assembly
from canon.io.onnx.check import MOST_NODES, check_operators, known_operators
from canon.io.onnx.hints import any_of, hint, known_result, method, settled
from canon.io.onnx.model import Branch, Model, Node, Port, StoredTensor, settled_shapes
from canon.io.onnx.norms import spell_norms
from canon.io.onnx.operators import TAKE_SIZES, check_whole, evened, lookup, moved, on_sizes
from canon.io.onnx.order import in_order, reads
from canon.io.onnx.precision import is_mixed, widened
from canon.io.onnx.tensors import TensorReader, dtype_of
from canon.io.onnx.values import Activation, Blocks, Constant, Quantized, Size, Sizes, Value

OPEN_SIZES: Final = ((2, 224), (3, 256))
"""Two choices for sizes that the file leaves open: of the first axis, and of others."""

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
    for node in in_order(model.nodes):
        builder.step(node)
    return builder.finish()


class Builder:
    """Goes through the nodes of a file."""

    def __init__(self, model: Model, reader: TensorReader) -> None:
        self.model, self.reader, self.opset = model, reader, model.opset
        self.assembly = Assembly()
        self.values: dict[str, Value] = {}
        self.stored: dict[str, StoredTensor] = {}
        self.uses = Counter(name for node in model.nodes for name in reads(node))
        self.uses.update(port.name for port in model.outputs)
        self.folded = 0
        self.mixed = is_mixed(model)
        self.notes: dict[str, None] = {}
        self.precision: str | None = None
        self.blocks: Blocks | None = None
        self._new: list[str] = []
        self._transposed: dict[int, Constant] = {}
        self._made: dict[fx.Node, Activation] = {}
        self._store(model.tensors)
        self.inputs = tuple(port for port in model.inputs if port.name not in self.stored)
        shapes = [port.shape or () for port in self.inputs]
        self.open = any(not isinstance(size, int) or size <= 0 for shape in shapes for size in shape[1:])
        settled = [settled_shapes(shapes, *sizes) for sizes in OPEN_SIZES]
        for port, *choices in zip(self.inputs, *settled, strict=True):
            self._input(port, choices)

    def _store(self, tensors: tuple[StoredTensor, ...]) -> None:
        for stored in tensors:
            if stored.name in self.stored:
                raise FileFormatError("two tensors have one name", where=stored.name[:80])
            self.stored[stored.name] = stored

    def inside(self, branch: Branch) -> list[Value]:
        """The results of a branch. Its names mean nothing outside of it."""
        known_operators(branch.nodes)
        first = len(self._new)
        self._store(branch.tensors)
        for node in in_order(branch.nodes):
            self.step(node)
        results = [self.value(name) for name in branch.outputs]
        for name in [*self._new[first:], *(stored.name for stored in branch.tensors)]:
            self.values.pop(name, None)
            self.stored.pop(name, None)
        del self._new[first:]
        return results

    def note(self, text: str) -> None:
        """Remember what a user should know about how the file was read."""
        self.notes[text] = None

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """The type that numbers of this type are read in."""
        return widened(dtype) if self.mixed else dtype

    def read(self, stored: StoredTensor) -> Tensor:
        """A tensor of the file."""
        tensor = self.reader.read(stored)
        dtype = self.wide(tensor.dtype)
        if dtype != tensor.dtype:
            self.precision = self.precision or str(tensor.dtype).removeprefix("torch.")
            self.note(f"the file holds {str(tensor.dtype).removeprefix('torch.')} and float32; all is read as float32")
        return tensor.to(dtype)

    def _input(self, port: Port, shapes: list[list[int]]) -> None:
        where = f"input '{port.name[:80]}'"
        if port.shape is None:
            raise UnsupportedModelError("the shape of the input is not given", where=where)
        if port.name in self.values:
            raise FileFormatError("two inputs have one name", where=where)
        dtype = self.wide(dtype_of(port.dtype, where))
        hints = []
        for shape in shapes:
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
            hint = SIZE_HINT if self.open else None
            raise FileFormatError(
                f"the node does not fit its operands: {reason_of(error)}", where=node.where, hint=hint
            ) from error
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            if name in self.values or name in self.stored:
                raise FileFormatError(f"two nodes make the value '{name[:80]}'", where=node.where)
            if index < len(results):
                self.values[name] = results[index]
                self._new.append(name)
            elif self.uses[name]:
                raise UnsupportedModelError(f"its output '{name[:80]}' is not supported", where=node.where)

    def _apply(self, node: Node) -> list[Any]:
        operands = [self.value(name) if name else None for name in node.inputs]
        result = None
        if any(isinstance(value, Sizes) for value in operands):
            result = on_sizes(self, node, operands)
            if result is None and node.op not in TAKE_SIZES:
                operands = [settled(value) if isinstance(value, Sizes) else value for value in operands]
        if result is None:
            apply = lookup(node.op, node.domain)
            assert apply is not None, "checked before"
            check_whole(node, operands)
            operands = evened(self, node, operands)
            quantized = any(isinstance(value, Quantized) for value in operands)
            result = moved(self, node, operands, apply) if quantized else apply(self, node, *operands)
        return result if isinstance(result, list) else [result]

    def value(self, name: str) -> Value:
        """What a name stands for."""
        if name not in self.values and name in self.stored:
            self.values[name] = Constant(self.read(self.stored[name]), name)
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
        function = partial(method, target) if isinstance(target, str) else target
        if fold and not any_of(operands, (Activation, Size)):
            return self._fold(function, operands)
        hints = []
        for index in range(2):
            given, named = map_aggregate(operands, partial(hint, index=index))
            same = known_result(function, given, named)
            if same is None:
                with torch.device("meta"):
                    same = function(*given, **named)
            hints.append(same)
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
        hints = [module(*map_aggregate(args, partial(hint, index=index))) for index in range(2)]
        given = map_aggregate(args, self._argument)
        return self._result(self.assembly.graph.call_module(path, given), hints)

    def activation(self, value: Value) -> Activation:
        """A value as an operand of a node."""
        if isinstance(value, Sizes):
            value = settled(value)
        if isinstance(value, Activation):
            return value
        if not isinstance(value, Constant):
            raise UnsupportedModelError("whole numbers of a quantized model are computed with as such")
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
        given, named = map_aggregate(operands, partial(hint, index=0))
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
            for shape in hints:
                if shape.numel() > MOST_ELEMENTS or shape.ndim > MOST_AXES:
                    raise LimitError(f"an activation of shape {tuple(shape.shape)[:MOST_AXES]} is too large")
            if len(self._made) >= MOST_NODES:
                raise LimitError(f"the graph becomes more than {MOST_NODES} operations")
            self._made[node] = Activation(node, (hints[0], hints[1]))
            return self._made[node]
        graph = self.assembly.graph
        return [
            self._result(graph.call_function(operator.getitem, (node, index)), [item[index] for item in hints])
            for index in range(len(hints[0]))
        ]

    def finish(self) -> fx.GraphModule:
        """The finished module; `meta["inputs"]` says what it takes: name, element type and shape of every input."""
        found = [self.value(port.name) for port in self.model.outputs]
        if not any(isinstance(value, Activation) for value in found):
            raise UnsupportedModelError("no output of the model depends on its inputs")
        nodes = [self.activation(value).node for value in found]
        shapes = {node: value.hints[0].shape for node, value in self._made.items()} | self.assembly.shapes()
        norms = spell_norms(self.assembly.graph, shapes)
        result = self.assembly.finish([norms.get(node, node) for node in nodes])
        result.meta["inputs"] = tuple((p.name, self.wide(dtype_of(p.dtype, p.name)), p.shape) for p in self.inputs)
        result.meta["notes"], result.meta["precision"] = tuple(self.notes), self.precision
        return result
