"""Stretches of a program that are linear and not written as layers: found here, asked what they do, written as layers.

A convolution may be nine shifted products, a depthwise kernel many slices, a linear layer an einsum, and around any of
them axes may change places. Such a stretch reads few values, and everything in it is linear. What it does to each of
these values is then told by its derivative, and shown on random numbers: for a linear map, that is a proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from torch import fx, nn

from canon.normal.running import Running, called

ONE_VALUE: Final = frozenset(
    "slice alias view reshape _unsafe_view permute transpose t mT swapaxes swapdims movedim moveaxis flatten "
    "unflatten squeeze unsqueeze getitem narrow select index_select expand expand_as contiguous clone detach "
    "flip roll mean sum repeat tile unfold split chunk unbind tensor_split constant_pad_nd pad neg double float to "
    "type_as avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d ravel "
    "view_as reshape_as real imag pixel_shuffle pixel_unshuffle diff".split()
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


@dataclass(frozen=True, eq=False)
class Region:
    """A stretch that gives one value."""

    nodes: tuple[fx.Node, ...]
    """In the order of execution; the last gives the value."""

    inputs: tuple[fx.Node, ...]


class Regions:
    """Where a program is linear, and how that is written."""

    def __init__(self, running: Running) -> None:
        self.running, self.graph = running, running.graph
        self.held, self.shape, self.constant = running.held, running.shape, running.constant

    def kind(self, node: fx.Node) -> tuple[bool, bool, bool]:
        """Whether an operation is linear in the values that it reads, is written plainly, and has weights."""
        if node.op == "call_module":
            layer = self.held[str(node.target)]
            known = type(layer) in LAYERS and len(node.all_input_nodes) == 1 and not layer._forward_hooks
            plain = type(layer) in PLAIN_LAYERS and getattr(layer, "padding_mode", "zeros") == "zeros"
            return known, plain and not self._late(node), type(layer) in WEIGHTED
        if node.op not in ("call_function", "call_method"):
            return False, False, False
        name = called(node)
        values = [n for n in node.all_input_nodes if not self.constant(n)]
        tensors = [n for n in node.all_input_nodes if self.constant(n)]
        if not values:
            return self.constant(node), True, False
        after = self.shape.get(node) or ()
        if name in ("pad",) and (node.kwargs.get("mode", "constant") != "constant" or _mode(node) != "constant"):
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
                pads: Any = node.kwargs.get("pad", node.args[1] if len(node.args) > 1 else ())
                plain = len(pads) <= 2 * (len(after) - 2)
            return True, plain or self._whole_mean(node, name), False
        return False, False, False

    def _same_shape(self, node: fx.Node, values: list[fx.Node]) -> bool:
        name = called(node)
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

    def found(self) -> Iterator[list[Region]]:
        """Stretches that are linear and not written as layers: by place, the ways to take one, the smallest first."""
        kinds = {node: self.kind(node) for node in self.graph.nodes}
        position = {node: index for index, node in enumerate(self.graph.nodes)}
        taken: set[fx.Node] = set()
        for head in reversed(list(self.graph.nodes)):
            heads = [head]
            while heads:
                one = heads.pop()
                if one in taken or not one.users or not kinds[one][0] or self.constant(one):
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
                while len(one.users) == 1:
                    one = next(iter(one.users))
                    if one in taken or one not in kinds or not kinds[one][0]:
                        break
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
        """How far a stretch is from being written as layers: norms and factors among its layers say nothing."""
        nodes = [n for n in region.nodes if not self.constant(n)]
        kinds = [self.kind(n) for n in nodes]
        if any(weighted for _, _, weighted in kinds):
            pairs = zip(nodes, kinds, strict=True)
            nodes = [n for n, (_, plain, weighted) in pairs if weighted or not plain]
        else:
            nodes = [n for n in nodes if called(n) != "mean"]
        heavy = [at for at, n in enumerate(nodes) if self.kind(n)[2]]
        convolved = any(not self._is_linear(nodes[at]) for at in heavy)
        odd = sum(weighted and not plain for _, plain, weighted in kinds)
        return len(nodes) + odd + (heavy[0] if heavy else 0) + convolved

    def _is_linear(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return type(self.held[str(node.target)]) is nn.Linear
        return "conv" not in called(node)

    def _back(self, node: fx.Node, cone: set[fx.Node]) -> set[fx.Node]:
        seen, stack = set[fx.Node](), [node]
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
                known = source in kinds and (kinds[source][0] or self.constant(source))
                if source in depth or source in taken or not known:
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


def _below(ordered: Iterable[fx.Node], odd: set[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in ordered:
        if node in odd or any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _shared(sides: list[set[fx.Node]]) -> bool:
    return any(a & b for i, a in enumerate(sides) for b in sides[:i])


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
    return prod(shape or ())
