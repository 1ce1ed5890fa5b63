"""Operations that do nothing, and the proof that they do: exact identities of weights, signs and shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from canon.normal.branches import cut_of
from canon.normal.nodes import Affine, Graph, Linear, Node

ROUNDINGS = 4
"""An identity that was written as a quotient or a root may be off by so many roundings of float32."""

KEEPS_SIGN = (
    "max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "mean of positions", "flatten", "positions"
)  # fmt: skip


def drop_identities(graph: Graph) -> list[str]:
    """Affine maps and kernels that give what they got."""
    said = []
    for node in graph.order:
        if node.kind == "affine" and is_identity(node.value):
            graph.replace(node, node.inputs[0])
            said.append(f"'{node.name}' does nothing: it is x · 1 + 0")
        elif node.kind == "linear" and identity_kernel(node.value):
            graph.replace(node, node.inputs[0])
            said.append(f"'{node.name}' does nothing: its kernel is the identity, and it adds zero")
        elif node.kind == "cat" and len(node.inputs) == 1:
            graph.replace(node, node.inputs[0])
            said.append(f"'{node.name}' joins one value only")
        elif node.kind == "cat":
            whole = _joined_again(node)
            if whole is not None:
                graph.replace(node, whole)
                said.append(f"'{node.name}' joins what was cut apart, in the same order")
    return said


def is_identity(value: Affine) -> bool:
    """Whether an affine map gives what it got."""
    if value.scale.is_meta:
        return False
    error = ROUNDINGS * torch.finfo(torch.float32).eps
    return bool(((value.scale - 1).abs() <= error).all()) and not bool(value.shift.any())


def identity_kernel(value: Linear) -> bool:
    """Whether a layer gives what it got."""
    weight = value.weight.detach()
    if weight.is_meta or value.transposed is not None or value.mode != "zeros":
        return False
    if value.bias is not None and bool(value.bias.detach().any()):
        return False
    if weight.shape[0] != weight.shape[1] * value.groups or any(s != 1 for s in value.stride):
        return False
    taps = middle(value)
    return taps is not None and _is_unit(weight, taps, value.groups)


def middle(value: Linear) -> tuple[int, ...] | None:
    """The tap that stands over the output's own position; None where there is none."""
    taps = []
    for size, dilation, (before, behind), reach in zip(
        value.weight.shape[2:], value.dilation, value.padding, value.reach, strict=True
    ):
        if before % dilation or before // dilation >= size or before + behind != reach - 1:
            return None
        taps.append(before // dilation)
    return tuple(taps)


def _is_unit(weight: Tensor, taps: tuple[int, ...], groups: int) -> bool:
    whole: Any = (slice(None), slice(None), *taps)
    centre = weight[whole]
    rows = torch.arange(len(weight), device=weight.device)
    ones = centre[rows, rows % centre.shape[1]]
    error = ROUNDINGS * torch.finfo(torch.float32).eps
    if not bool(((ones.double() - 1).abs() <= error).all()):
        return False
    return int(torch.count_nonzero(weight)) == len(weight)


def _joined_again(node: Node) -> Node | None:
    """The value that all parts of a concatenation are stretches of, one after the other."""
    cuts = [cut_of(part) for part in node.inputs]
    whole, reached = None, 0
    for cut in cuts:
        if cut is None or cut.axis != node.label or cut.start != reached or whole not in (None, cut.source):
            return None
        whole, reached = cut.source, reached + cut.length
    return whole if whole is not None and whole.shape == node.shape else None


def drop_repeated(graph: Graph) -> list[str]:
    """A ReLU of what is never negative, and of what was clamped already."""
    said = []
    signs: dict[Node, int] = {}
    for node in graph.order:
        source = graph.resolve(node.inputs[0]) if node.inputs else None
        if node.kind == "call" and node.label == ("relu",) and source is not None:
            if signs.get(source, 0) > 0:
                graph.replace(node, source)
                said.append(f"'{node.name}' does nothing: what it reads is never negative")
        elif _is_clamp(node) and source is not None and source.kind == "call" and node.label == source.label:
            graph.replace(node, source)
            said.append(f"'{node.name}' does nothing: the same was done before it")
        signs[node] = _sign(node, [signs.get(graph.resolve(n), 0) for n in node.inputs])
    return said


def _is_clamp(node: Node) -> bool:
    return node.kind == "call" and isinstance(node.label, tuple) and node.label[0] == "clamp"


def _sign(node: Node, inputs: list[int]) -> int:
    """1: never negative; 0: not known."""
    if node.kind == "call" and isinstance(node.label, tuple):
        name = node.label[0]
        if name in ("relu", "sigmoid", "softmax", "hardsigmoid", "abs", "exp", "square"):
            return 1
        if name == "clamp":
            return int(isinstance(node.label[1], float) and node.label[1] >= 0)
        return inputs[0] if name in KEEPS_SIGN and inputs else 0
    if node.kind in ("product", "cat"):
        return min(inputs, default=0)
    if node.kind == "sum":
        return int(all(c >= 0 for c in node.value) and min(inputs, default=0) > 0)
    if node.kind == "affine" and inputs[0] > 0 and not node.value.scale.is_meta:
        return int(bool((node.value.scale >= 0).all()) and bool((node.value.shift >= 0).all()))
    return 0


def spell_gates(graph: Graph) -> list[str]:
    """`x · sigmoid(x)` is SiLU, and `x · hardsigmoid(x)` is hardswish."""
    said = []
    names = {"sigmoid": "silu", "hardsigmoid": "hardswish"}
    for node in graph.order:
        if node.kind != "product" or len(node.inputs) != 2:
            continue
        for gate, value in (node.inputs, reversed(node.inputs)):
            name = gate.label[0] if gate.kind == "call" and isinstance(gate.label, tuple) else None
            if name in names and gate.inputs == [value]:
                made = Node("call", [value], (names[str(name)], ()), name=node.name, shape=node.shape)
                graph.replace(node, made)
                said.append(f"'{node.name}' is {names[str(name)]}, written as a product")
                break
    return said
