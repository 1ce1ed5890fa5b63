"""From a torch.fx program to values: one kind for one idea, whichever of torch's many spellings was used."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from canon.errors import reason_of
from canon.graph.modules import ACTIVATIONS, hooked
from canon.graph.names import writes_in_place
from canon.graph.results import layer_result
from canon.graph.rules import ALIASES, VIEWS
from canon.graph.tensors import meta_clone
from canon.graph.values import Value
from canon.normal.curves import Curves
from canon.normal.functions import (
    FUNCTIONS,
    affine_of,
    computed,
    functional,
    norm_layer,
    product_over_channels,
    unfold_settings,
)
from canon.normal.functions import NORMS as NORMED
from canon.normal.idle import identity_kernel, is_identity
from canon.normal.nodes import MOST_NODES, Affine, Graph, Linear, Node, NotNormal
from canon.normal.opened import open_written_out
from canon.normal.patterns import scaled
from canon.normal.pieces import Pieces
from canon.normal.recording import recorded_program
from canon.normal.spelling import MEAN, called_name, elementwise, plain_settings

CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED: Final = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
PADDINGS: Final = (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)
POOLS: Final = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
SUMS: Final = {"add": 1.0, "iadd": 1.0, "add_": 1.0, "sub": -1.0, "isub": -1.0, "sub_": -1.0}
PRODUCTS: Final = ("mul", "imul", "mul_", "multiply")
CONSTANT: Final = "canon_constant"
"""Where a program's node keeps a tensor that the code writes, which stands in no model."""

PRODUCT: Final = ("matmul", ("[", ("[", "·", "·"), ("{",)))
"""A product of two values, as a call of it."""

EXPANSIONS: Final = ("expand", "expand_as", "broadcast_to")
QUOTIENTS: Final = ("truediv", "div", "div_", "itruediv", "divide")


class _Tracer(fx.Tracer):
    """Also walks into modules that are made on the way, such as a stretch of a `Sequential`."""

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """See `fx.Tracer`."""
        try:
            return super().call_module(m, forward, args, kwargs)
        except NameError:  # it has no name in the model; its own layers may have
            return forward(*args, **kwargs)


def program_graph(model: nn.Module, example: Any = None) -> fx.Graph:
    """A model's program.

    Args:
        model: In evaluation mode.
        example: Where torch.fx cannot read the forward pass, it is run on this once, and written down.

    Raises:
        NotNormal: torch.fx cannot read it, or it has too many operations.
    """
    tracer = _Tracer()
    try:
        graph = model.graph if isinstance(model, fx.GraphModule) else tracer.trace(open_written_out(meta_clone(model)))
        lost = any(tensor.is_meta for tensor in getattr(tracer, "tensor_attrs", {}))
    except Exception as error:
        recorded = None if example is None else recorded_program(model, example)
        if recorded is None:
            raise NotNormal(f"torch.fx cannot trace the forward pass: {reason_of(error)}") from error
        return recorded
    if lost and example is not None:  # torch.fx computes with buffers at once, and on the clone they have no numbers
        return recorded_program(model, example) or graph
    written = {name: tensor for tensor, name in getattr(tracer, "tensor_attrs", {}).items()}
    for node in graph.nodes:
        if node.op == "get_attr" and str(node.target).startswith("_tensor_constant"):
            node.meta[CONSTANT] = written.get(node.target)
    if len(graph.nodes) > MOST_NODES:
        raise NotNormal(f"the program has {len(graph.nodes)} operations; {MOST_NODES} are the most")
    return graph


def lower(model: nn.Module, example: Any, graph: fx.Graph | None = None, *, owner: bool = False) -> Graph:
    """The values of a forward pass.

    Args:
        model: In evaluation mode; its tensors may be without numbers.
        example: An input tensor or tuple of inputs. Where the program does not run on it, no shape is known.
        graph: The model's program, where it is at hand.
        owner: Whether another model's numbers are to be written into the program: nothing is computed then.
    """
    graph = program_graph(model) if graph is None else graph
    return _Lowering(model, graph, shapes_of(model, graph, example), owner).run()


def shapes_of(model: nn.Module, graph: fx.Graph, example: Any) -> dict[fx.Node, Any]:
    """Shapes of all values, and numbers worked out of them, as far as the program runs, without computing anything."""
    given = example if isinstance(example, tuple) else (example,)
    found: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            found[n] = _shape(result)
            return result

        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            given = [Value(x) if isinstance(x, Tensor) else x for x in args]
            known = None if kwargs else layer_result(self.fetch_attr(target), given)
            return super().call_module(target, args, kwargs) if known is None else known

    inputs = [x.to("meta") if isinstance(x, Tensor) else x for x in given]
    try:
        clone = meta_clone(model)
        for node in graph.nodes:
            if isinstance(node.meta.get(CONSTANT), Tensor):
                setattr(clone, str(node.target), node.meta[CONSTANT].to("meta"))
        with torch.no_grad():
            Recorder(clone, garbage_collect_values=True, graph=graph).run(*inputs)
    except Exception:
        return {}
    return found


def _shape(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, float) or type(value) is int:
        return value
    return [_shape(v) for v in value] if isinstance(value, list | tuple) else None


class _Lowering:
    def __init__(self, model: nn.Module, graph: fx.Graph, shapes: dict[fx.Node, Any], owner: bool) -> None:
        self.model, self.graph, self.shapes, self.owner = model, graph, shapes, owner
        self.values: dict[fx.Node, Node] = {}
        self.memory: dict[fx.Node, tuple[fx.Node, bool]] = {}
        self.names: dict[fx.Node, list[fx.Node]] = {}
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.inputs: list[Node] = []
        self.parts: dict[Node, tuple[Tensor, ...]] = {}
        self.curves = Curves(dict(model.named_modules()))
        self.pieces = Pieces()

    def run(self) -> Graph:
        output = None
        for node in self.graph.nodes:
            made = self.node(node)
            made.shape = self.shapes.get(node) if made.shape is None else made.shape
            made.name = made.name or str(node.target if node.op == "call_module" else node.name)
            made = self.curves.follow(node, made, self.values)
            if node.op in ("call_function", "call_method"):
                self.pieces.follow(node, self.called(node), made, self.values)
            self.values[node] = made
            if node.op == "placeholder":
                self.inputs.append(made)
            elif node.op == "output":
                output = made
            elif node.op != "get_attr":
                self.remember(node, made)
        if output is None:
            raise NotNormal("the program has no output")
        graph = Graph(self.inputs, output, self.curves.said)
        self.pieces.apart(graph)
        return graph

    def remember(self, node: fx.Node, made: Node) -> None:
        """What is changed in place is changed under each of its names."""
        module = self.model.get_submodule(str(node.target)) if node.op == "call_module" else None
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            return
        name = name_of(module) if module is not None else self.called(node)
        # What does nothing changes nothing, in place or not.
        in_place = writes_in_place(node, module) and name not in ALIASES
        whole = in_place or name in ALIASES
        if not whole and name not in VIEWS:
            return
        base, exact = self.memory.get(source, (source, True))
        self.memory[node] = (base, exact and whole)
        known = self.names.setdefault(base, [base])
        known.append(node)
        if not in_place:
            return
        for other in known[:-1]:
            same = self.memory.get(other, (other, True)) == (base, True) and self.memory.get(source, (source, True))[1]
            if other is source or same:
                self.values[other] = made
            elif any(self.position[user] > self.position[node] for user in other.users):
                raise NotNormal("a value is changed in place while a view of it is in use", where=node.name)

    def called(self, node: fx.Node) -> str | None:
        """The name of the operation of a function or method call."""
        return str(node.target) if node.op == "call_method" else called_name(node.target)

    def node(self, node: fx.Node) -> Node:
        if node.op == "placeholder":
            return Node("input", label=len(self.inputs))
        if node.op == "get_attr":
            value: Any = self.model
            for part in str(node.target).split("."):
                value = getattr(value, part, node.meta.get(CONSTANT))
            if not isinstance(value, Tensor):
                raise NotNormal("the program reads something that is no tensor", where=str(node.target))
            return Node("tensor", value=value, name=str(node.target), shape=tuple(value.shape))
        if node.op == "output":
            given: list[Node] = []
            fx.map_arg(node.args[0], lambda n: given.append(self.values[n]))
            return Node("output", given, self.template(node.args[0])[0])
        if node.op == "call_module":
            return self.layer(node, self.model.get_submodule(str(node.target)))
        return self.function(node)

    def template(self, structure: Any) -> tuple[Hashable, list[Node]]:
        """Arguments with a mark in place of every value, and those values."""
        inputs: list[Node] = []

        def visit(value: Any) -> Hashable:
            if isinstance(value, fx.Node):
                inputs.append(self.values[value])
                return "·"
            if isinstance(value, list | tuple):
                return ("[", *(visit(v) for v in value))
            if isinstance(value, dict):
                return ("{", *((str(k), visit(v)) for k, v in sorted(value.items())))
            if isinstance(value, slice):
                return ("slice", visit(value.start), visit(value.stop), visit(value.step))
            return value if isinstance(value, str | int | float | bool | type(None)) else str(value)

        return visit(structure), inputs

    def layer(self, node: fx.Node, module: Any) -> Node:
        """A call of a layer."""
        name, kind = str(node.target), type(module)
        label, inputs = self.template((node.args, node.kwargs))
        if hooked(module) or len(node.args) != 1 or node.kwargs or len(inputs) != 1:
            return Node("call", inputs, (kind.__qualname__, label, name), tensors=_tensors(module))
        if kind is nn.Linear:
            return Node("linear", inputs, value=Linear(module.weight, module.bias, name=name))
        if kind in (*CONVOLUTIONS, *TRANSPOSED):
            value = _convolution(module, name)
            if value is not None:
                return Node("linear", inputs, value=value)
        if kind in NORMS and module.running_mean is not None:
            return Node("affine", inputs, value=norm_value(module, name))
        settings = dict(plain_settings(module))
        found = elementwise(name_of(module), (), settings, inputs[0].shape, self.shapes.get(node))
        if found is not None:
            return self.spelled(inputs, *found)
        return Node("call", inputs, (kind.__qualname__, plain_settings(module)), tensors=_tensors(module), name=name)

    def spelled(self, inputs: list[Node], *labels: Hashable) -> Node:
        """Calls one behind the other; none: the value itself, as an affine map that does nothing."""
        if not labels:
            one = torch.ones((), dtype=torch.float64)
            return Node("affine", inputs, value=Affine(one, torch.zeros_like(one)))
        made = Node("call", inputs, labels[0])
        for label in labels[1:]:
            if made.label == MEAN[0] and isinstance(shape := inputs[0].shape, tuple):
                made.shape = (*shape[:2], *(1 for _ in shape[2:]))
            made = Node("call", [made], label)
        return made

    def function(self, node: fx.Node) -> Node:
        """A call of a function or method."""
        name = self.called(node)
        label, inputs = self.template((node.args, node.kwargs))
        plain = Node("call", inputs, (name or str(node.target), label))
        if name in EXPANSIONS and inputs and inputs[0].kind == "tensor":
            return Node("call", inputs[:1], ("expand",))
        if inputs and not self.owner and all(v.kind == "tensor" or v in self.parts for v in inputs):
            made = computed(node, {n: self.parts.get(v := self.values[n], v.value) for n in node.all_input_nodes})
            if isinstance(made, Tensor):
                return Node("tensor", value=made, name=node.name, shape=tuple(made.shape))
            if made is not None:
                self.parts[plain] = made
            return plain
        if name is None or "out" in node.kwargs:
            return plain
        if name in SUMS or name in PRODUCTS or name in QUOTIENTS:
            return self.arithmetic(node, name, inputs) or plain
        if name in FUNCTIONS:
            return self.functional(node, name) or plain
        if name in NORMED:
            return norm_layer(name, node, self.values) or plain
        if name == "scaled_dot_product_attention":
            return self.attention(node) or plain
        if name == "neg" and len(inputs) == 1:
            return Node("affine", inputs, value=Affine(*torch.tensor([-1.0, 0.0], dtype=torch.float64)))
        if name in ("cat", "concat", "concatenate"):
            listed = node.args[0] if node.args else node.kwargs.get("tensors")
            dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
            shape = self.shapes.get(node)
            if isinstance(listed, list | tuple) and type(dim) is int and all(isinstance(x, fx.Node) for x in listed):
                axis = dim % len(shape) if isinstance(shape, tuple) else dim
                return Node("cat", [self.values[x] for x in listed if isinstance(x, fx.Node)], axis)
            return plain
        rest = [a for a in node.args[1:] if isinstance(a, fx.Node)]
        if len(inputs) == 1 and not rest and node.args and isinstance(node.args[0], fx.Node):
            found = elementwise(name, node.args[1:], dict(node.kwargs), inputs[0].shape, self.shapes.get(node))
            if found is not None:
                return self.spelled(inputs, *found)
        return self.reshaped(node, name, inputs) or plain

    def attention(self, node: fx.Node) -> Node | None:
        """Attention as the products that it is; None with masks."""
        settings: dict[str, Any] = {
            **dict(zip(("attn_mask", "dropout_p", "is_causal"), node.args[3:], strict=False)),
            **node.kwargs,
        }
        scale = settings.pop("scale", None)
        operands = [self.values[a] for a in node.args[:3] if isinstance(a, fx.Node)]
        if any(settings.values()) or len(operands) < 3 or not all(isinstance(v.shape, tuple) for v in operands):
            return None
        query, key, value = operands
        turned = self.pieces.turned(key)
        alike = Node("call", [query, turned], PRODUCT, name=node.name, shape=(*query.shape[:-1], key.shape[-2]))
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        shares = ("softmax", (("dim", len(query.shape) - 1),))
        return Node("call", [Node("call", [scaled(alike, factor)], shares, shape=alike.shape), value], PRODUCT)

    def functional(self, node: fx.Node, name: str) -> Node | None:
        """A layer that is not called, but its function with its tensors."""
        value = functional(name, node, self.values, self.shapes.get(node))
        if value is not None:
            given = node.args[1] if name == "addmm" else node.args[0] if node.args else node.kwargs["input"]
            return Node("affine" if isinstance(value, Affine) else "linear", [self.values[given]], value=value)  # type: ignore[index]
        if name in ("mm", "matmul") and not self.owner:
            found = product_over_channels(node, self.values)
            return None if found is None else Node("linear", [found[0]], value=found[1])
        if name == "unfold" and isinstance(node.args[0], fx.Node):
            settings = unfold_settings(node.args[1:], node.kwargs)
            return None if settings is None else Node("call", [self.values[node.args[0]]], ("unfold", settings))
        return None

    def reshaped(self, node: fx.Node, name: str, inputs: list[Node]) -> Node | None:
        """A reshape that is a flatten, however its sizes were told."""
        if name not in ("view", "reshape", "flatten", "_unsafe_view", "squeeze") or not inputs:
            return None
        found = elementwise("flatten", (), {}, inputs[0].shape, self.shapes.get(node))
        return None if found is None else self.spelled(inputs[:1], *found)

    def operand(self, given: Any) -> Any:
        """A value, or the number that was worked out from sizes."""
        if not isinstance(given, fx.Node):
            return given
        known = self.shapes.get(given)
        return known if isinstance(known, int | float) else self.values[given]

    def arithmetic(self, node: fx.Node, name: str, inputs: list[Node]) -> Node | None:
        """Sums, products and quotients of values, constants and tensors of the model."""
        if len(node.args) != 2 or node.kwargs.keys() - {"alpha"}:
            return None
        first, second = (self.operand(a) for a in node.args)
        other: Any
        sign = SUMS.get(name, 1.0) * float(node.kwargs.get("alpha", 1.0))  # type: ignore[arg-type]
        values = [v for v in (first, second) if isinstance(v, Node) and v.kind != "tensor"]
        shape = self.shapes.get(node)
        if len(values) == 2:
            if name in SUMS:
                same = values[0].shape == values[1].shape and isinstance(shape, tuple)
                return Node("sum", values, value=(1.0, sign)) if same else None
            return Node("product", values) if name in PRODUCTS and isinstance(shape, tuple) else None
        if len(values) != 1 or not isinstance(shape, tuple) or values[0].shape != shape:
            return None
        other, swapped = (first, True) if second is values[0] else (second, False)
        constant = _constant(other, shape)
        if constant is None and isinstance(other, Node) and (name in PRODUCTS or (name in SUMS and sign == 1)):
            return Node("call", [*values, other], ("mul" if name in PRODUCTS else "add", "tensor"))
        if constant is None or (swapped and name in QUOTIENTS):
            return None
        one, zero = torch.ones_like(constant), torch.zeros_like(constant)
        target = other.name if isinstance(other, Node) else ""
        if name in SUMS:
            scale, shift = (sign * one, constant) if swapped else (one, sign * constant)
            source = (("shift", target),) if target and name in ("add", "iadd", "add_") else ()
        else:
            scale, shift = (constant if name in PRODUCTS else 1 / constant), zero
            source = (("scale", target),) if target and name in PRODUCTS else ()
        return Node("affine", values, value=Affine(scale, shift, sources=source))


def _constant(other: Any, shape: tuple[int, ...]) -> Tensor | None:
    """A number, or one for each channel."""
    if isinstance(other, int | float) and not isinstance(other, bool):
        return torch.tensor(float(other), dtype=torch.float64)
    if not isinstance(other, Node) or not isinstance(other.value, Tensor) or not other.value.is_floating_point():
        return None
    tensor = other.value.detach()
    if tensor.numel() == 1:
        return tensor.double().reshape(())
    whole = (1,) * (len(shape) - tensor.ndim) + tuple(tensor.shape)
    if len(shape) < 2 or len(whole) != len(shape) or whole[1] != shape[1] or prod(whole) != shape[1]:
        return None
    return tensor.double().reshape(-1)


def norm_value(module: Any, name: str) -> Affine:
    """A batch norm as an affine map."""
    own = {key: getattr(module, key) for key in ("weight", "bias", "running_mean", "running_var", "eps")}
    return affine_of(own, (("norm", name),))


def does_nothing(module: nn.Module) -> bool:
    """Whether a layer gives what it got, whatever that is: an identity kernel, or a norm that is `x · 1 + 0`."""
    layer: Any = module
    if hooked(module):
        return False
    if type(module) is nn.Linear:
        return identity_kernel(Linear(layer.weight, layer.bias))
    if type(module) in CONVOLUTIONS:
        value = _convolution(layer, "")
        return value is not None and identity_kernel(value)
    return type(module) in NORMS and layer.running_mean is not None and is_identity(norm_value(layer, ""))


def name_of(module: nn.Module) -> str | None:
    """The name of the function that a layer without tensors is."""
    if type(module) in PADDINGS:
        return "pad"
    if type(module) in POOLS:
        return f"avg_pool{type(module).__name__[-2:]}"
    return "softmax" if type(module) is nn.Softmax else ACTIVATIONS.get(type(module))


def _convolution(module: Any, name: str) -> Linear | None:
    reach = [(k - 1) * d + 1 for k, d in zip(module.kernel_size, module.dilation, strict=True)]
    if module.padding == "valid":
        padding = tuple((0, 0) for _ in reach)
    elif module.padding == "same":
        padding = tuple(((r - 1) // 2, r - 1 - (r - 1) // 2) for r in reach)
    else:
        padding = tuple((p, p) for p in module.padding)
    transposed = tuple(module.output_padding) if isinstance(module, TRANSPOSED) else None
    return Linear(
        module.weight, module.bias, tuple(module.stride), padding, tuple(module.dilation), module.groups,
        module.padding_mode, transposed, name,
    )  # fmt: skip


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict((*module.named_parameters(), *module.named_buffers()))


__all__ = ["does_nothing", "lower", "norm_value", "program_graph", "shapes_of"]
