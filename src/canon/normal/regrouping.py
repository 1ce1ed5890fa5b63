"""Layers that were taken apart or put together in other ways: by windows, by outputs, by inputs, by strides."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any, Final

import torch

from canon.normal.branches import reaches, read_by_layer, rows_axis
from canon.normal.functions import unfolded
from canon.normal.idle import is_identity
from canon.normal.kernels import common_geometry, dense, diagonal, scaled
from canon.normal.nodes import Affine, Graph, Linear, Node
from canon.normal.patterns import POINTWISE, WHOLE, called

POSITIVE: Final = ("relu", "leaky_relu", "max_pool", "avg_pool", "mean of positions", "flatten", "adaptive_avg_pool")
"""Functions of one value through which positive factors pass."""


BY_CHANNEL: Final = ("max_pool", "avg_pool", "mean of positions", "adaptive_avg_pool", "adaptive_max_pool")
"""Functions that treat every channel by itself."""


def cancel_affine(graph: Graph) -> list[str]:
    """Affine maps that undo each other, with nothing between them or a function that positive factors pass."""
    said = []
    for node in graph.order:
        if node.kind != "affine":
            continue
        middle = node.inputs[0]
        first, between = middle, False
        if called(middle, *POSITIVE) and graph.alone(middle) and len(middle.inputs) == 1:
            first, between = middle.inputs[0], True
        if first.kind != "affine" or not graph.alone(first) or graph.resolve(first) is not first:
            continue
        one, two = first.value, node.value
        if one.scale.is_meta or two.scale.is_meta or one.scale.numel() != two.scale.numel():
            continue
        if between and (bool(one.shift.any()) or not bool((one.scale > 0).all())):
            continue
        if not is_identity(Affine(two.scale * one.scale, two.scale * one.shift + two.shift)):
            continue
        if between:
            middle.inputs = [first.inputs[0]]
            graph.changed = True
        graph.replace(node, middle if between else first.inputs[0])
        said.append(f"'{first.name}' and '{node.name}' undo each other")
    return said


def join_windows(graph: Graph) -> list[str]:
    """Windows laid out side by side and one product with all of them: a convolution."""
    said = []
    for node in graph.order:
        if not called(node, "view", "reshape", "unflatten", "_unsafe_view") or not isinstance(node.shape, tuple):
            continue
        behind: list[Node] = []
        source = node.inputs[0]
        while source.kind == "affine" and graph.alone(source):
            behind.append(source)
            source = source.inputs[0]
        if source.kind != "linear" or not graph.alone(source) or len(source.inputs) != 1:
            continue
        value = unfolded(source.inputs[0], source.value, node.shape)
        if value is None or source.shape[:2] != node.shape[:2]:
            continue
        made = Node("linear", source.inputs[0].inputs[:1], value=value, name=source.name, shape=node.shape)
        for affine in reversed(behind):
            made = Node("affine", [made], value=affine.value, name=affine.name, shape=node.shape)
        graph.replace(node, made)
        said.append(f"'{source.name}' is a convolution, written as a product with windows")
    return said


def split_sums(graph: Graph) -> list[str]:
    """A kernel that adds up the parts of a concatenation, channel by channel: a sum."""
    said = []
    for node in graph.order:
        if node.kind != "linear" or node.inputs[0].kind != "cat" or node.inputs[0].label != 1:
            continue
        value, parts = node.value, node.inputs[0].inputs
        widths = [part.shape[1] if isinstance(part.shape, tuple) else 0 for part in parts]
        if value.groups != 1 or value.weight.is_meta or sum(widths) != value.weight.shape[1]:
            continue
        if set(widths) != {value.weight.shape[0]}:
            continue
        borders = [0, *(sum(widths[: k + 1]) for k in range(len(widths)))]
        blocks = [
            diagonal(value.with_numbers(value.weight.detach()[:, a:b], value.bias if a == 0 else None))
            for a, b in pairwise(borders)
        ]
        if any(block is None for block in blocks):
            continue
        terms = [
            part if is_identity(block) else Node("affine", [part], value=block, name=node.name, shape=node.shape)
            for part, block in zip(parts, blocks, strict=True)
            if block is not None
        ]
        graph.replace(node, Node("sum", terms, value=(1.0,) * len(terms), name=node.name, shape=node.shape))
        said.append(f"'{node.name}' adds up what was joined before it: a sum, written as a kernel")
    return said


def pull_from_joins(graph: Graph) -> list[str]:
    """A function of each part of a concatenation is the function of the whole."""
    for node in graph.order:
        parts = [graph.resolve(n) for n in node.inputs]
        if node.kind != "cat" or len(parts) < 2 or len({part.label for part in parts}) > 1:
            continue
        first, axis = parts[0], _axis(node)
        keeps = called(first, *POINTWISE) or (
            axis == 1 and (called(first, *BY_CHANNEL) or first.label == ("flatten", 1))
        )
        inside = [part.inputs[0] for part in parts if part.kind == "call" and not part.tensors]
        if not keeps or len(inside) < len(parts) or any(len(part.inputs) > 1 for part in parts):
            continue
        shapes = [value.shape for value in inside]
        if not all(isinstance(s, tuple) and _apart(s, shapes[0], axis) for s in shapes):
            continue
        whole = _joined(inside, axis, node.name)
        graph.replace(node, Node("call", [whole], first.label, name=node.name, shape=node.shape))
    return []


def _axis(join: Node) -> int:
    """The axis of a concatenation; -1 where it is not known."""
    return join.label if isinstance(join.label, int) else -1


def pull_norms(graph: Graph) -> list[str]:
    """A norm of each part of a concatenation is a norm of the whole."""
    said = []
    for node in graph.order:
        parts = [graph.resolve(n) for n in node.inputs]
        plain = node.kind == "cat" and node.label == 1 and all(p.kind == "affine" and by_channel(p) for p in parts)
        if not plain or len(parts) < 2:
            continue
        scale, shift = (torch.cat([numbers_of(part, key) for part in parts]) for key in ("scale", "shift"))
        inside = [graph.resolve(part.inputs[0]) for part in parts]
        whole = _joined(inside, 1, node.name)
        graph.replace(node, Node("affine", [whole], value=Affine(scale, shift), name=node.name, shape=node.shape))
        said.append(f"norms of the parts of '{node.name}' are one norm")
    return said


def by_channel(affine: Node) -> bool:
    """Whether an affine map has numbers for the channels of a value of known shape."""
    return isinstance(affine.shape, tuple) and len(affine.shape) > 1 and not affine.value.scale.is_meta


def numbers_of(affine: Node, key: str) -> torch.Tensor:
    """Scale or shift of an affine map, one number for each channel."""
    found: torch.Tensor = getattr(affine.value, key)
    return found.expand(affine.shape[1]) if found.ndim == 0 else found


def _apart(one: tuple[int, ...], two: tuple[int, ...], axis: Any) -> bool:
    """Whether values can stand side by side."""
    return 0 <= axis < len(one) == len(two) and all(
        a == b for at, (a, b) in enumerate(zip(one, two, strict=True)) if at != axis
    )


def _joined(parts: list[Node], axis: int, name: str) -> Node:
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return Node("cat", parts, axis, name=name, shape=tuple(shape))


def join_outputs(graph: Graph) -> list[str]:
    """Layers on one value whose outputs stand side by side: one layer."""
    said = []
    for node in graph.order:
        if node.kind != "cat" or len(node.inputs) < 2 or not isinstance(node.shape, tuple):
            continue
        found = [pair for part in node.inputs for pair in [next(reaches(graph, part), None)] if pair is not None]
        if len(found) < len(node.inputs) or len({source for source, _ in found}) > 1:
            continue
        made = _side_by_side([value for _, value in found])
        if made is None or rows_axis(made, len(node.shape)) != node.label:
            continue
        graph.replace(node, Node("linear", [found[0][0]], value=made, name=node.name, shape=node.shape))
        said.append(f"{len(found)} layers side by side at '{node.name}' are one")
    return said


def _side_by_side(values: list[Linear]) -> Linear | None:
    """One layer with the rows of all."""
    wide = [dense(v) for v in values]
    if len({v.weight.shape[1] * v.groups for v in values}) > 1 or len({v.rank for v in values}) > 1 or None in wide:
        return None
    alike = common_geometry([_blank_rows(v, wide) for v in wide if v is not None])
    if alike is None:
        return None
    rows = [v.weight.shape[0] for v in values]
    bias = None
    if any(v.bias is not None for v in values):
        bias = torch.cat([v.weight.new_zeros(n) if v.bias is None else v.bias.detach()
                          for v, n in zip(values, rows, strict=True)])  # fmt: skip
    return alike[0].with_numbers(torch.cat([v.weight[:n] for v, n in zip(alike, rows, strict=True)]), bias)


def join_terms(graph: Graph) -> list[str]:
    """A sum of layers, each of a part of what one layer and functions of its numbers make: a layer of all of it."""
    said = []
    for node in graph.order:
        for places in parallel_terms(graph, node):
            found = [(node.value[at], *next(reaches(graph, node.inputs[at]), (None, None))) for at in places]
            parts, values = [source for _, source, _ in found], [_times(v, c) for c, _, v in found if v is not None]
            made = _over_all(values) if len(values) == len(parts) else None
            shape = parts[0].shape
            axis = None if made is None else rows_axis(made, len(shape))
            if made is None or axis is None or not all(_apart(part.shape, shape, axis) for part in parts):
                continue
            name = node.inputs[places[0]].name
            layer = Node("linear", [_joined(parts, axis, name)], value=made, name=name, shape=node.shape)
            rest = {n: c for at, (n, c) in enumerate(zip(node.inputs, node.value, strict=True)) if at not in places}
            terms = {**rest, layer: 1.0}
            whole = Node("sum", list(terms), value=tuple(terms.values()), name=node.name, shape=node.shape)
            graph.replace(node, whole if rest else layer)
            said.append(f"{len(parts)} terms of '{node.name}' are one layer, written for parts of its input")
            break
    return said


def parallel_terms(graph: Graph, node: Node) -> list[list[int]]:
    """Terms of a sum that are layers of parts of one thing: functions of single numbers of layers on one value."""
    groups: dict[Any, list[int]] = {}
    for at, term in enumerate(node.inputs if node.kind == "sum" else ()):
        value = read_by_layer(graph, term)
        labels: list[Any] = []
        while value is not None and called(value, *POINTWISE) and len(value.inputs) == 1 and graph.alone(value):
            labels.append(value.label)
            value = value.inputs[0]
        base = read_by_layer(graph, value) if value is not None and labels else None
        if base is not None:
            groups.setdefault((base, *labels), []).append(at)
    return [places for places in groups.values() if len(places) > 1]


def _times(value: Linear, factor: float) -> Linear:
    return scaled(value, Affine(torch.tensor(factor, dtype=torch.float64), torch.zeros((), dtype=torch.float64)))


def _over_all(values: list[Linear]) -> Linear | None:
    """One layer with the columns of all."""
    columns = [v.weight.shape[1] for v in values]
    wide = [
        v.with_numbers(
            torch.cat([v.weight.detach(), v.weight.new_zeros(len(v.weight), max(columns) - n, *v.weight.shape[2:])], 1),
            v.bias,
        )
        for v, n in zip(values, columns, strict=True)
    ]
    alike = common_geometry(wide)
    if alike is None or any(v.groups > 1 for v in values):
        return None
    biases = [v.bias.detach() for v in values if v.bias is not None]
    bias = sum(biases[1:], biases[0]) if biases else None
    return alike[0].with_numbers(torch.cat([v.weight[:, :n] for v, n in zip(alike, columns, strict=True)], 1), bias)


def parallel_outputs(graph: Graph, node: Node) -> bool:
    """Whether all parts of a concatenation are layers on one value."""
    read = [read_by_layer(graph, part) for part in node.inputs]
    return None not in read and len(set(read)) == 1


def _blank_rows(value: Linear, others: list[Linear | None]) -> Linear:
    """A layer with as many rows as the widest of some, so that their kernels can be brought to one size."""
    rows = max(v.weight.shape[0] for v in others if v is not None)
    weight = value.weight.detach()
    return value.with_numbers(torch.cat([weight, weight.new_zeros(rows - len(weight), *weight.shape[1:])]), None)


def take_up_strides(graph: Graph) -> list[str]:
    """A layer of which every second position is read has that stride itself."""
    said = []
    for node in graph.order:
        step = _steps(node)
        source = node.inputs[0] if node.inputs else None
        if step is None or source is None or source.kind != "linear" or not graph.alone(source):
            continue
        value = source.value
        if value.transposed is not None or value.rank != len(step):
            continue
        stride = tuple(a * b for a, b in zip(value.stride, step, strict=True))
        made = value.with_numbers(value.weight, value.bias, stride=stride)
        graph.replace(node, Node("linear", source.inputs, value=made, name=source.name, shape=node.shape))
        said.append(f"'{source.name}' is read at every {step}th position")
    return said


def _steps(node: Node) -> tuple[int, ...] | None:
    """How far apart positions are that a call leaves over."""
    label: Any = node.label
    if called(node, "max_pool", "avg_pool") and set(label[1]) == {1} and set(label[3]) == {0}:
        return tuple(label[2])
    if not called(node, "getitem") or len(node.inputs) != 1 or not isinstance(node.inputs[0].shape, tuple):
        return None
    operands = label[1][1][1:]
    if len(operands) != 2 or not isinstance(operands[1], tuple) or operands[1][0] != "[":
        return None
    slices = operands[1][1:]
    if len(slices) != len(node.inputs[0].shape) or any(
        not isinstance(s, tuple) or s[0] != "slice" or s[1] not in (None, 0) or s[2] is not None for s in slices
    ):
        return None
    steps = tuple(1 if s[3] is None else s[3] for s in slices)
    return steps[2:] if steps[:2] == (1, 1) and all(type(s) is int and s > 0 for s in steps) else None


def spell_pools(graph: Graph) -> list[str]:
    """A kernel that gives each channel the same of all its taps: average pooling."""
    said = []
    for node in graph.order:
        if node.kind != "linear" or node.value.rank < 1:
            continue
        mean = _uniform(node.value)
        before = node.inputs[0].shape
        if mean is None or not isinstance(before, tuple):
            continue
        value = node.value
        sides, padding = tuple(value.weight.shape[2:]), tuple(a for a, _ in value.padding)
        label: Any = ("avg_pool", sides, value.stride, padding, False, any(padding), None)
        if sides == before[2:] and not any(padding):
            label = WHOLE
        made = Node("call", node.inputs, label, name=node.name, shape=node.shape)
        if not is_identity(mean):
            made = Node("affine", [made], value=mean, name=node.name, shape=node.shape)
        graph.replace(node, made)
        said.append(f"'{node.name}' is average pooling, written as a kernel")
    return said


def _uniform(value: Linear) -> Affine | None:
    weight = value.weight.detach()
    sides = weight.shape[2:]
    if weight.is_meta or value.transposed is not None or value.mode != "zeros" or prod(sides) < 2:
        return None
    if any(d != 1 for d in value.dilation) or any(a != b for a, b in value.padding):
        return None
    taps = weight.flatten(2)
    first = taps[:, :, 0]
    if not torch.equal(taps, first[:, :, None].expand_as(taps)):
        return None
    one = (1,) * value.rank
    flat = first.reshape(*first.shape, *one) * prod(sides)
    return diagonal(value.with_numbers(flat, value.bias, stride=one, padding=((0, 0),) * value.rank))
