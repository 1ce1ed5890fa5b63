"""From a program's graph to a `torch.fx.GraphModule`: layers where the weights are a layer's, functions elsewhere."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from canon._untrusted import Limits, damaged, is_identifier
from canon.errors import FileFormatError
from canon.io.program.layers import Weight, layer_for
from canon.io.program.operations import IGNORED, operation
from canon.io.program.values import DTYPES, PLAIN, integer, only, sizes, text

_NORMS: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "batch_norm": (functional.batch_norm, "training"),
    "instance_norm": (functional.instance_norm, "use_input_stats"),
}
"""Norms whose operands stand in another order in ATen than in torch.nn, and what they call their mode."""

_SIZED: Final = {"view": "size", "reshape": "shape", "_unsafe_view": "size", "expand": "size"}
"""Operations that are given the sizes of their result, and what that operand is called."""


def build_program(
    document: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str, limits: Limits
) -> fx.GraphModule:
    """The module that computes what a graph says, with these tensors."""
    builder = _Builder(document["graph"], tensors, where, limits)
    builder.inputs(document["signature"]["input_specs"])
    for node in document["graph"]["nodes"]:
        builder.node(node)
    return builder.finish(document["signature"]["output_specs"])


class _Builder:
    def __init__(self, graph: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str, limits: Limits) -> None:
        self.where, self.limits, self.tensors = where, limits, tensors
        self.shapes: Mapping[str, Any] = graph["tensor_values"]
        self.graph = fx.Graph()
        self.root = nn.Module()
        self.values: dict[str, Any] = {}
        self.attributes: dict[str, fx.Node] = {}
        self.layers: dict[str, str] = {}
        self.batch: int | None = None
        self.below: dict[str, set[str]] = defaultdict(set)
        for name in tensors:
            parts = name.split(".")
            for end in range(1, len(parts)):
                self.below[".".join(parts[:end])].add(".".join(parts[end:]))

    def inputs(self, specs: Any) -> None:
        """Weights become names, the rest placeholders."""
        for spec in specs:
            kind, given = only(spec)
            if kind == "user_input":
                self.placeholder(given["arg"])
                continue
            field = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}
            if kind not in field:
                raise FileFormatError(f"the program takes an input of the kind '{kind:.40}'", where=self.where)
            name = text(given[field[kind]])
            if name not in self.tensors:
                raise damaged(f"the tensor '{name:.120}' is missing", self.where)
            self.set(given["arg"]["name"], Weight(name))

    def placeholder(self, argument: Any) -> None:
        kind, given = only(argument)
        if kind != "as_tensor":
            raise FileFormatError("the program takes an input that is no tensor", where=self.where)
        name = text(given["name"])
        meta = self.shapes[name]
        shape, dtype = sizes(meta["sizes"]), DTYPES[integer(meta["dtype"])]
        self.limits.check_shape(shape, dtype.itemsize, f"{self.where}: {name}")
        node = self.graph.placeholder(_identifier(name))
        node.meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
        if self.batch is None and shape:
            self.batch = shape[0]
        self.set(name, node)

    def node(self, node: Any) -> None:
        """One operation."""
        target = text(node["target"])
        if target in IGNORED:
            return
        named = {text(entry["name"]): entry["arg"] for entry in node["inputs"]}
        if target == "torch.ops.aten.sym_size.int":
            source, axis = self.value(named["self"]), self.value(named["dim"])
            self.give(node["outputs"], self.graph.call_method("size", (source, axis)))
            return
        function = operation(target, self.where)
        values = {name: self.value(argument, weights=True) for name, argument in named.items()}
        if values.get("training") is True or values.get("train") is True:
            raise FileFormatError(
                "the program was exported in training mode", where=self.where, hint="Call model.eval() before exporting"
            )
        if not isinstance(function, torch._ops.OpOverload):
            self.give(node["outputs"], self.graph.call_function(function, tuple(map(self.attribute, values.values()))))
            return
        made = self.layer(function, named, values)
        self.give(node["outputs"], made if made is not None else self.call(function, named, values))

    def layer(self, function: torch._ops.OpOverload, named: Any, values: dict[str, Any]) -> fx.Node | None:
        """The operation as a call of a layer."""
        name = function._schema.name.partition("::")[2]
        arguments = function._schema.arguments
        given = {a.name: values.get(a.name, a.default_value) for a in arguments}
        source = given.get(arguments[0].name) if arguments else None
        if not isinstance(source, fx.Node):
            return None
        found = layer_for(name, given, self.tensors, self.below, len(self.shape(named[arguments[0].name])))
        if found is None:
            return None
        path, layer = found
        if path not in self.layers:
            self.layers[path] = repr(layer)
            self.place(path, layer)
        # A layer that is called again with other settings is called as a function.
        return self.graph.call_module(path, (source,)) if self.layers[path] == repr(layer) else None

    def place(self, path: str, layer: nn.Module) -> None:
        """Put a layer where its name says, with its tensors."""
        for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
            stored = self.tensors.get(f"{path}.{name}")
            if stored is None:
                layer._buffers[name] = torch.zeros_like(tensor, device="cpu")
            elif stored.shape != tensor.shape:
                raise damaged(f"the tensor '{path}.{name}' has another shape than its layer", self.where)
            elif isinstance(tensor, nn.Parameter):
                layer._parameters[name] = stored if isinstance(stored, nn.Parameter) else nn.Parameter(stored)
            else:
                layer._buffers[name] = stored.detach()
        parent, _, leaf = path.rpartition(".")
        self.folder(parent).add_module(leaf, layer)

    def call(self, function: torch._ops.OpOverload, named: Any, values: dict[str, Any]) -> fx.Node:
        """The operation as a call of a function."""
        arguments = function._schema.arguments
        unknown = set(values) - {a.name for a in arguments}
        if unknown:
            raise damaged(f"{function} has no operand '{sorted(unknown)[0]:.40}'", self.where)
        name = function._schema.name.partition("::")[2]
        if name in _NORMS:
            return self.norm(name, values)
        if name in _SIZED and arguments:
            self.free_batch(named[arguments[0].name], values, _SIZED[name])
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in arguments:
            if argument.name not in values:
                continue
            value = self.attribute(values[argument.name])
            if argument.kwarg_only or len(args) < arguments.index(argument):
                kwargs[argument.name] = value
            else:
                args.append(value)
        return self.graph.call_function(function, tuple(args), kwargs)

    def norm(self, name: str, values: dict[str, Any]) -> fx.Node:
        """A norm whose tensors are no layer's."""
        function, mode = _NORMS[name]
        given = {key: self.attribute(value) for key, value in values.items()}
        order = ("input", "running_mean", "running_var", "weight", "bias", mode, "momentum", "eps")
        return self.graph.call_function(function, tuple(given[key] for key in order))

    def free_batch(self, source: Any, values: dict[str, Any], field: str) -> None:
        """A batch size that export has written in becomes the batch of the operand, so that any batch can be run."""
        wanted: Any = values.get(field)
        node = next(iter(values.values()))
        if not isinstance(wanted, list) or not wanted or not isinstance(node, fx.Node):
            return
        if type(wanted[0]) is int and (self.batch,) == (wanted[0],) == self.shape(source)[:1]:
            wanted[0] = self.graph.call_method("size", (node, 0))

    def shape(self, argument: Any) -> tuple[int, ...]:
        kind, given = only(argument)
        return sizes(self.shapes[given["name"]]["sizes"]) if kind == "as_tensor" else ()

    def value(self, argument: Any, *, weights: bool = False) -> Any:
        """An operand; a weight stays a name if the caller can take that."""
        kind, given = only(argument)
        if kind in PLAIN:
            return PLAIN[kind](given)
        found = self.reference(kind, given)
        return found if weights else self.attribute(found)

    def reference(self, kind: str, given: Any) -> Any:
        match kind:
            case "as_tensor":
                return self.values[text(given["name"])]
            case "as_tensors":
                return [self.values[text(one["name"])] for one in given]
            case "as_optional_tensor":
                return self.value(given, weights=True)
            case "as_optional_tensors":
                return [self.value(one, weights=True) for one in given]
            case "as_sym_int":
                return self.size(given)
            case "as_sym_ints":
                return [self.size(one) for one in given]
        raise FileFormatError(f"the program uses an operand of the kind '{kind:.40}'", where=self.where)

    def size(self, given: Any) -> Any:
        kind, value = only(given)
        return integer(value) if kind == "as_int" else self.values[text(value)]

    def attribute(self, value: Any) -> Any:
        """Weights by name become nodes that read them."""
        if isinstance(value, list):
            return [self.attribute(one) for one in value]
        if not isinstance(value, Weight):
            return value
        if value.name not in self.attributes:
            self.attributes[value.name] = self.graph.get_attr(value.name)
        return self.attributes[value.name]

    def give(self, outputs: Any, node: fx.Node) -> None:
        """Name the results of an operation."""
        if not isinstance(outputs, list) or len(outputs) != 1:
            for index, output in enumerate(outputs):
                self.set(only(output)[1]["name"], self.graph.call_function(operator.getitem, (node, index)))
            return
        kind, given = only(outputs[0])
        if kind == "as_tensors":
            for index, one in enumerate(given):
                self.set(one["name"], self.graph.call_function(operator.getitem, (node, index)))
        else:
            self.set(given["as_name" if kind == "as_sym_int" else "name"], node)

    def set(self, name: Any, value: Any) -> None:
        if text(name) in self.values:
            raise damaged(f"the value '{name:.120}' is made twice", self.where)
        self.values[name] = value

    def folder(self, path: str) -> nn.Module:
        """The module at a path; plain ones are made on the way."""
        module = self.root
        for part in path.split(".") if path else ():
            if part not in module._modules:
                module.add_module(part, nn.Module())
            child = module._modules[part]
            assert child is not None, "only modules are added"
            module = child
        return module

    def finish(self, specs: Any) -> fx.GraphModule:
        """The module."""
        outputs = []
        for spec in specs:
            kind, given = only(spec)
            if kind != "user_output":
                raise FileFormatError(
                    f"the program changes what it is given ({kind:.40})",
                    where=self.where,
                    hint="Export the model in evaluation mode: model.eval()",
                )
            outputs.append(self.value(given["arg"]))
        self.graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        for name in self.attributes:
            self.keep(name)
        return fx.GraphModule(self.root, self.graph).eval()

    def keep(self, name: str) -> None:
        """Give the module a tensor that an operation reads by name."""
        path, _, leaf = name.rpartition(".")
        folder, tensor = self.folder(path), self.tensors[name]
        if isinstance(tensor, nn.Parameter):
            folder._parameters.setdefault(leaf, tensor)
        else:
            folder._buffers.setdefault(leaf, tensor)
        if leaf in folder._modules:
            raise damaged(f"'{name}' is both a layer and a tensor", self.where)


def _identifier(name: str) -> str:
    if not is_identifier(name):
        raise ValueError("an input has no proper name")
    return name
