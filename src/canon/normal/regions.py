"""Stretches of a program that are linear and not written as layers: found here, asked what they do, written as layers.

A convolution may be nine shifted products, a depthwise kernel many slices, a linear layer an einsum, and around any of
them axes may change places. Such a stretch reads few values, and everything in it is linear. What it does to each of
these values is then told by its derivative, and shown on random numbers: for a linear map, that is a proof.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from canon.graph.modules import ACTIVATIONS
from canon.normal.recognised import Form, recognise
from canon.normal.spelling import called_name

ONE_VALUE: Final = frozenset(
    "slice alias view reshape _unsafe_view permute transpose t mT swapaxes swapdims movedim moveaxis flatten unflatten squeeze "
    "unsqueeze getitem narrow select index_select expand expand_as contiguous clone detach flip roll mean sum repeat "
    "tile unfold split chunk unbind tensor_split constant_pad_nd pad neg double float to type_as avg_pool1d avg_pool2d "
    "avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d ravel view_as reshape_as real imag "
    "pixel_shuffle pixel_unshuffle diff".split()
)
"""Linear functions of their first operand; the others are settings."""

WITH_TENSORS: Final = frozenset(
    "mul multiply div divide truediv matmul mm bmm einsum linear conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d addmm baddbmm addbmm batch_norm addcmul tensordot inner".split()
)
"""Linear where one operand is a value and the others are tensors of the model."""

TOGETHER: Final = frozenset("add sub iadd isub rsub cat concat concatenate stack hstack vstack lerp subtract".split())
"""Linear in all operands."""

LAYERS: Final = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Flatten, nn.Unflatten, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.Identity, nn.Dropout, nn.ZeroPad1d,
    nn.ZeroPad2d, nn.ZeroPad3d, nn.PixelShuffle, nn.PixelUnshuffle,
)  # fmt: skip

PLAIN_LAYERS: Final = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.AvgPool1d,
    nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.Identity,
    nn.Dropout, nn.Flatten, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d,
)  # fmt: skip
WEIGHTED: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, *LAYERS[3:6])
PLAIN: Final = frozenset(
    "linear conv1d conv2d conv3d batch_norm add sub iadd isub cat concat concatenate pad constant_pad_nd contiguous "
    "clone detach double float to avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d flatten neg".split()
)
"""Functions that the normal form reads as they are."""

JOINS: Final = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")
FILLED: Final = ("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like")
"""Functions of a value that ask it for nothing but its size."""

MOST_ROUNDS: Final = 400
"""Stretches that are written as layers, one after the other."""

SHARED: Final = 8
"""Values that one stretch may read."""


@dataclass(frozen=True, eq=False)
class Region:
    """A stretch that gives one value."""

    nodes: tuple[fx.Node, ...]
    """In the order of execution; the last gives the value."""

    inputs: tuple[fx.Node, ...]


class Respelling:
    """A suspect's program as it is rewritten."""

    def __init__(self, model: nn.Module, graph: fx.Graph, example: tuple[Any, ...]) -> None:
        self.graph = fx.Graph()
        self.graph.output(self.graph.graph_copy(graph, {}))
        self.held: dict[str, Any] = {}
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                found: Any = model
                for part in str(node.target).split("."):
                    found = getattr(found, part, node.meta.get("canon_constant"))
                self.held[str(node.target)] = found
        self.example, self.said = example, list[str]()
        self.shape: dict[fx.Node, Any] = {}
        self.doubles: dict[str, Any] = {}
        self.run()

    def module(self) -> fx.GraphModule:
        """The program as it is now."""
        used = {str(n.target) for n in self.graph.nodes if n.op in ("call_module", "get_attr")}
        return fx.GraphModule({name: self.held[name] for name in used}, self.graph).eval()

    def run(self) -> None:
        """Shapes of all values; sizes that are computed become plain numbers."""
        known: dict[fx.Node, Any] = {}
        given = iter(self.example)
        with torch.no_grad():
            for node in list(self.graph.nodes):
                if node.op == "placeholder":
                    known[node] = self.like(next(given, node.args[0] if node.args else None))
                elif node.op == "output":
                    break
                else:
                    known[node] = self.call(node, known)
                    if _called(node) in FILLED:
                        known[self._hold(node, known[node])] = known[node]
        self.shape = {n: tuple(v.shape) if isinstance(v, Tensor) else None for n, v in known.items()}
        for node, value in known.items():
            if node.op not in ("placeholder", "get_attr") and _is_plain(value):
                plain = tuple(value) if isinstance(value, torch.Size) else value
                for user in list(node.users):
                    user.args = fx.map_arg(user.args, lambda n, node=node, plain=plain: plain if n is node else n)
                    user.kwargs = fx.map_arg(user.kwargs, lambda n, node=node, plain=plain: plain if n is node else n)
        self._tidy()

    def _hold(self, node: fx.Node, value: Tensor) -> fx.Node:
        name = f"canon_stretch_{len(self.held)}"
        self.held[name] = value
        with self.graph.inserting_before(node):
            held = self.graph.get_attr(name)
        node.replace_all_uses_with(held)
        return held

    def _tidy(self) -> None:
        for node in reversed(list(self.graph.nodes)):
            if not node.users and node.op not in ("placeholder", "output"):
                self.graph.erase_node(node)

    def like(self, value: Any) -> Any:
        """An input of the same shape: random where it holds numbers."""
        if isinstance(value, Tensor) and value.is_floating_point():
            return torch.randn(value.shape, dtype=torch.float64)
        return value

    def call(self, node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
        """One operation, in float64."""
        if node.op == "get_attr":
            return _double(self.held[str(node.target)])
        args, kwargs = (fx.map_arg(part, lambda n: known[n]) for part in (node.args, node.kwargs))
        if node.op == "call_module":
            name = str(node.target)
            if name not in self.doubles:
                self.doubles[name] = copy.deepcopy(self.held[name]).double()
            return _double(self.doubles[name](*args, **kwargs))
        if node.op == "call_method":
            return _double(getattr(args[0], str(node.target))(*args[1:], **kwargs))
        return _double(node.target(*args, **kwargs))  # type: ignore[operator]

    def constant(self, node: fx.Node) -> bool:
        """Whether a value is made from the model's tensors alone."""
        return node.op == "get_attr" or (
            node.op in ("call_function", "call_method")
            and bool(node.all_input_nodes)
            and all(self.constant(n) for n in node.all_input_nodes)
        )

    def kind(self, node: fx.Node) -> tuple[bool, bool, bool]:
        """Whether an operation is linear in the values that it reads, is written plainly, and has weights."""
        if node.op == "call_module":
            layer = self.held[str(node.target)]
            known = type(layer) in LAYERS and len(node.all_input_nodes) == 1 and not layer._forward_hooks
            plain = type(layer) in PLAIN_LAYERS and getattr(layer, "padding_mode", "zeros") == "zeros"
            return known, plain and not self._late(node), type(layer) in WEIGHTED
        if node.op not in ("call_function", "call_method"):
            return False, False, False
        name = _called(node)
        values = [n for n in node.all_input_nodes if not self.constant(n)]
        tensors = [n for n in node.all_input_nodes if self.constant(n)]
        if not values:
            return self.constant(node), True, False
        after = self.shape.get(node) or ()
        if name in ("pad",) and (node.kwargs.get("mode", "constant") != "constant" or "constant" != _mode(node)):
            return False, False, False
        if name in TOGETHER:
            wide = any(_numel(self.shape.get(t)) > 1 for t in tensors)
            if wide and name not in JOINS and any(_axes(self.shape.get(t)) > 1 for t in tensors):
                return False, False, False  # a constant for every position is nobody's bias
            plain = name in PLAIN and not wide and self._same_shape(node, values)
            return True, plain, False
        if name in WITH_TENSORS and len(values) == 1:
            numbers = all(_by_channel(self.shape.get(t), after) for t in tensors)
            plain = (name in PLAIN or (numbers and name in ("mul", "div", "truediv"))) and not self._late(node)
            weighted = name not in ("mul", "multiply", "div", "divide", "truediv", "batch_norm", "addcmul")
            divided = name in ("div", "divide", "truediv") and node.args[0] is not values[0]
            return not divided, plain, weighted
        if name in ONE_VALUE and len(values) == 1 and node.args and node.args[0] is values[0]:
            plain = name in PLAIN and not self._late(node)
            if name == "flatten":
                plain = plain and len(after) == 2
            if name in ("pad", "constant_pad_nd"):
                pads = node.kwargs.get("pad", node.args[1] if len(node.args) > 1 else ())
                plain = len(pads) <= 2 * (len(after) - 2)
            return True, plain or self._whole_mean(node, name), False
        return False, False, False

    def _same_shape(self, node: fx.Node, values: list[fx.Node]) -> bool:
        name = called_name(node.target) if node.op == "call_function" else str(node.target)
        if name in ("cat", "concat", "concatenate"):
            dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
            return isinstance(dim, int) and dim % len(self.shape[node] or (0, 0)) == 1
        return all(self.shape.get(v) == self.shape.get(node) for v in values)

    def _whole_mean(self, node: fx.Node, name: str) -> bool:
        before, after = self.shape.get(node.all_input_nodes[0]), self.shape.get(node)
        if name != "mean" or not before or not after or len(before) < 3:
            return False
        return tuple(after[:2]) == before[:2] and all(n == 1 for n in after[2:])

    def _late(self, node: fx.Node) -> bool:
        """A flatten behind a layer of one position: the layer could have stood behind it."""
        source = node.all_input_nodes[0]
        shape = self.shape.get(source)
        if shape is None or len(shape) < 3 or len(self.shape.get(node) or ()) != 2 or any(n != 1 for n in shape[2:]):
            return False
        return source.op == "call_module" and type(self.held[str(source.target)]) in WEIGHTED

    def regions(self) -> Iterator[list[Region]]:
        """Stretches that are linear and not written as layers: by place, the ways to take one, the smallest first."""
        kinds = {node: self.kind(node) for node in self.graph.nodes}
        position = {node: index for index, node in enumerate(self.graph.nodes)}
        taken: set[fx.Node] = set()
        for head in reversed(list(self.graph.nodes)):
            heads = [head]
            while heads:
                one = heads.pop()
                if one in taken or not kinds[one][0] or self.constant(one):
                    continue
                cone = self._cone(one, kinds, taken)
                odd = {n for n in cone if not kinds[n][1]}
                if not odd:
                    continue
                below = _below(sorted(cone, key=position.__getitem__), odd)
                operands = [n for n in one.all_input_nodes if n in below]
                if one not in odd and not _shared([self._back(n, cone) for n in operands]):
                    heads += operands
                    continue
                ways = [self._region(below, position), self._region(cone, position)]
                while len(one.users) == 1 and kinds[one := next(iter(one.users))][0] and one not in taken:
                    wider = self._cone(one, kinds, taken)
                    if not cone <= wider:
                        break
                    ways += [self._region(below | (wider - cone), position), self._region(wider, position)]
                taken |= below
                yield ways

    def _region(self, members: set[fx.Node], position: Mapping[fx.Node, int]) -> Region:
        needed, stack = set(members), list(members)
        while stack:
            for source in stack.pop().all_input_nodes:
                if source not in needed and self.constant(source):
                    needed.add(source)
                    stack.append(source)
        ordered = tuple(sorted(needed, key=position.__getitem__))
        inputs = [n for m in ordered for n in m.all_input_nodes if n not in needed]
        return Region(ordered, tuple(dict.fromkeys(inputs)))

    def cost(self, region: Region) -> int:
        """How far a stretch is from being written as layers."""
        nodes = [n for n in region.nodes if not self.constant(n)]
        heavy = [at for at, n in enumerate(nodes) if self.kind(n)[2]]
        first = heavy[0] if heavy else 0
        flat = all(len(self.shape.get(n) or ()) < 3 or "linear" in str(n.target).lower() or self._is_linear(n) for n in
                   (nodes[at] for at in heavy))
        return len(nodes) + first + (0 if flat else 1)

    def _is_linear(self, node: fx.Node) -> bool:
        return node.op == "call_module" and type(self.held[str(node.target)]) is nn.Linear

    def _back(self, node: fx.Node, cone: set[fx.Node]) -> set[fx.Node]:
        seen, stack = set(), [node]
        while stack:
            at = stack.pop()
            if at in seen or self.constant(at):
                continue
            seen.add(at)
            if at in cone:
                stack += at.all_input_nodes
        return seen

    def _cone(
        self, head: fx.Node, kinds: Mapping[fx.Node, tuple[bool, bool, bool]], taken: set[fx.Node]
    ) -> set[fx.Node]:
        """What only this value is made of, by linear operations, with weights once on every way."""
        depth = {head: int(kinds[head][2])}
        stack = [head]
        while stack:
            node = stack.pop()
            for source in node.all_input_nodes:
                if source in depth or source in taken or not (kinds[source][0] or self.constant(source)):
                    continue
                if self.constant(source):
                    depth[source] = 0
                    stack.append(source)
                    continue
                if not all(user in depth for user in source.users):
                    continue
                deep = max(depth[user] for user in source.users) + int(kinds[source][2])
                if deep > 1:
                    continue
                depth[source] = deep
                stack.append(source)
        return set(depth)

    def value(self, region: Region, given: Mapping[fx.Node, Tensor]) -> Tensor:
        """What a stretch gives."""
        known: dict[fx.Node, Any] = dict(given)
        for node in region.nodes:
            known[node] = self.call(node, known)
        result = known[region.nodes[-1]]
        if not isinstance(result, Tensor):
            raise TypeError("a stretch that gives no tensor")
        return result

    def write(self, region: Region, terms: list[tuple[fx.Node, Form]], kept: fx.Node) -> None:
        """Put layers in the place of a stretch."""
        with self.graph.inserting_before(kept):
            made = [self._form(source, form) for source, form in terms]
            total = made[0]
            for other in made[1:]:
                total = self.graph.call_function(operator.add, (total, other))
        kept.replace_all_uses_with(total)
        self._tidy()

    def _form(self, source: fx.Node, form: Form) -> fx.Node:
        node = source
        for step in form.steps:
            if isinstance(step, nn.Module):
                name = f"canon_stretch_{len(self.held)}"
                self.held[name] = step
                node = self.graph.call_module(name, (node,))
            elif isinstance(step, Tensor):
                name = f"canon_stretch_{len(self.held)}"
                self.held[name] = step
                node = self.graph.call_function(operator.add, (node, self.graph.get_attr(name)))
            else:
                node = self.graph.call_method(step[0], (node, *step[1]))
        return node


def respelled(model: nn.Module, graph: fx.Graph, example: Any) -> tuple[fx.GraphModule, list[str]] | None:
    """A model that computes the same, whose linear stretches are layers; None where there is none to be found.

    Args:
        model: In evaluation mode; it is not changed.
        graph: Its program.
        example: An input tensor or tuple of inputs.
    """
    try:
        made = Respelling(model, graph, example if isinstance(example, tuple) else (example,))
    except Exception:  # a program that does not run on its example
        return None
    kind = next((t.dtype for t in model.parameters()), torch.float32)
    for _ in range(MOST_ROUNDS):
        sunk = sink_layouts(made)
        changed = False
        for ways in made.regions():
            for region in ways:
                terms = _terms(made, region, kind)
                if terms is None or _cost(terms) >= made.cost(region):
                    continue
                names = [n.name for n in region.nodes if not made.constant(n)]
                made.write(region, terms, region.nodes[-1])
                made.said.append(f"'{names[0]}' to '{names[-1]}' are linear: written as layers")
                changed = True
                break
            if changed:
                break
        if not changed and not sunk:
            break
        made.run()
    return (made.module(), made.said) if made.said else None


def _cost(terms: list[tuple[fx.Node, Form]]) -> int:
    total = len(terms) - 1
    for _, form in terms:
        heavy = [at for at, step in enumerate(form.steps) if isinstance(step, WEIGHTED)]
        total += len(form.steps) + (heavy[0] if heavy else 0)
        total += sum(isinstance(step, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for step in form.steps)
    return total


def _terms(made: Respelling, region: Region, kind: torch.dtype) -> list[tuple[fx.Node, Form]] | None:
    """What a stretch does to each value that it reads; None where that is not known."""
    if not 0 < len(region.inputs) <= SHARED or not made.shape.get(region.nodes[-1]) or any(not made.shape.get(n) for n in region.inputs):
        return None
    given = {n: torch.zeros(made.shape[n], dtype=torch.float64) for n in region.inputs}
    try:
        nothing = made.value(region, given).detach()
        found = []
        for place, source in enumerate(region.inputs):

            def ask(x: Tensor, source: fx.Node = source) -> Tensor:
                return made.value(region, {**given, source: x}) - nothing

            form = recognise(ask, tuple(made.shape[source]), nothing if place == 0 else torch.zeros_like(nothing), kind)
            if form is None:
                return None
            found.append((source, form))
    except Exception:  # operations that cannot be asked in this way
        return None
    return found


LAYOUTS: Final = ("permute", "transpose", "movedim", "swapaxes", "flatten", "unflatten", "reshape", "view")
POINTWISE: Final = frozenset(
    "relu relu6 leaky_relu elu celu selu gelu silu sigmoid tanh hardswish hardsigmoid mish softplus softsign abs neg exp "
    "hardtanh identity".split()
)


def sink_layouts(made: Respelling) -> bool:
    """`relu(permute(x))` is `permute(relu(x))`: what only moves entries goes behind functions of one number."""
    changed = False
    for node in list(made.graph.nodes):
        if node.op in ("call_function", "call_method"):
            name = _called(node)
        else:
            name = ACTIVATIONS.get(type(made.held[str(node.target)]), "") if node.op == "call_module" else ""
        sources = node.all_input_nodes
        alone = len(sources) == 1 and name in POINTWISE
        if not sources or not (alone or (len(sources) == 2 and name in ("add", "mul", "sub", "iadd"))):
            continue
        moves = [(s.op, s.target, s.args[1:], tuple(sorted(s.kwargs.items()))) for s in sources]
        plain = all(s.op in ("call_function", "call_method") and _called(s) in LAYOUTS for s in sources)
        before = {made.shape.get(s.all_input_nodes[0]) for s in sources} if plain else set()
        if not plain or len(before) != 1 or any(m != moves[0] for m in moves[1:]) or len(sources[0].all_input_nodes) != 1:
            continue
        if not alone and any(not isinstance(a, fx.Node) for a in node.args):
            continue
        inner = [s.all_input_nodes[0] for s in sources]
        with made.graph.inserting_before(node):
            by = dict(zip(sources, inner, strict=True))
            moved = made.graph.create_node(
                node.op, node.target, fx.map_arg(node.args, by.__getitem__), fx.map_arg(node.kwargs, by.__getitem__)
            )
            first = sources[0]
            behind = made.graph.create_node(
                first.op, first.target, (moved, *first.args[1:]), dict(first.kwargs)
            )
        made.shape[moved], made.shape[behind] = made.shape[inner[0]], made.shape[node]
        node.replace_all_uses_with(behind)
        made.graph.erase_node(node)
        changed = True
    return changed


def _below(ordered: Iterable[fx.Node], odd: set[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in ordered:
        if node in odd or any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _shared(sides: list[set[fx.Node]]) -> bool:
    return any(a & b for i, a in enumerate(sides) for b in sides[:i])


def _is_plain(value: Any) -> bool:
    if isinstance(value, bool | int | float | torch.Size):
        return True
    return isinstance(value, tuple) and bool(value) and all(isinstance(v, int) for v in value)


def _double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().double() if value.is_leaf and value.is_floating_point() and not value.requires_grad or (
            value.is_floating_point() and isinstance(value, nn.Parameter)
        ) else (value.double() if value.is_floating_point() and value.dtype != torch.float64 else value)
    return value


def _called(node: fx.Node) -> str:
    if node.op == "call_method":
        name = str(node.target)
    else:
        name = called_name(node.target) or str(getattr(node.target, "__name__", ""))
    return name.removesuffix("_")


def _mode(node: fx.Node) -> Any:
    return node.args[2] if len(node.args) > 2 else "constant"


def _axes(shape: Any) -> int:
    return sum(n != 1 for n in shape or ())


def _by_channel(shape: Any, after: tuple[int, ...]) -> bool:
    """Whether a constant has one number, or one for each channel of a value."""
    if _numel(shape) == 1:
        return True
    whole = (1,) * (len(after) - len(shape)) + tuple(shape)
    return len(after) > 1 and len(whole) == len(after) and _numel(whole) == whole[1]


def _numel(shape: Any) -> int:
    count = 1
    for n in shape or ():
        count *= n
    return count


_ = functional
