"""Sums without order or nesting; terms that are zero, that cancel, and that are one layer written as several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

import torch
from torch import Tensor

from canon.normal.branches import reaches
from canon.normal.kernels import common_geometry, scaled
from canon.normal.nodes import Affine, Graph, Linear, Node, is_zero

ZERO_OF_ZERO = frozenset(
    "relu silu tanh gelu hardswish leaky_relu elu celu selu mish softsign abs neg max_pool avg_pool flatten square "
    "adaptive_avg_pool adaptive_max_pool".split()
) | {"mean of positions"}
"""Calls that give zeros for zeros."""


def share_equal(graph: Graph) -> list[str]:
    """The same operation on the same values is computed once."""
    said: list[str] = []
    known: dict[Hashable, list[Node]] = defaultdict(list)
    for node in graph.order:
        if node.kind in ("input", "tensor", "output") or node.tensors:
            continue
        inputs = [id(graph.resolve(n)) for n in node.inputs]
        key = (node.kind, node.label, *(sorted(inputs) if node.kind == "product" else inputs))
        for other in known[key]:
            if _same_numbers(node, other):
                graph.replace(node, other)
                said.append(f"'{node.name}' computes what '{other.name}' does")
                break
        else:
            known[key].append(node)
    return said


def _same_numbers(node: Node, other: Node) -> bool:
    one, two = node.value, other.value
    if isinstance(one, Linear) and isinstance(two, Linear):
        settings = [
            (v.stride, v.padding, v.dilation, v.groups, v.mode, v.transposed, v.weight.shape, v.bias is None)
            for v in (one, two)
        ]
        return settings[0] == settings[1] and _equal(one.weight, two.weight) and _equal(one.bias, two.bias)
    if isinstance(one, Affine) and isinstance(two, Affine):
        return _equal(one.scale, two.scale) and _equal(one.shift, two.shift)
    return bool(one == two)


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return not a.is_meta and a.shape == b.shape and torch.equal(a, b)


def flatten_sums(graph: Graph) -> list[str]:
    """`(a + b) + c`, `2·a`, and the same term twice: every sum has each of its terms once, with a coefficient."""
    said = []
    for node in graph.order:
        if node.kind != "sum":
            continue
        terms: dict[Node, float] = {}
        changed = False
        for source, factor in zip(node.inputs, node.value, strict=True):
            for term, part in _terms(graph, graph.resolve(source)):
                changed |= term is not source or term in terms
                terms[term] = terms.get(term, 0.0) + factor * part
        kept = {term: factor for term, factor in terms.items() if factor != 0}
        if len(kept) < len(terms):
            said.append(f"terms of '{node.name}' cancel each other")
        elif changed and len(kept) == 1:
            said.append(f"'{node.name}' adds up parts of one value")
        if len(kept) == 1 and changed:
            ((term, factor),) = kept.items()
            graph.replace(node, term if factor == 1 else _scaled(node, term, factor))
        elif changed or len(kept) < len(terms):
            graph.replace(node, _sum(node, kept))
    return said


def _terms(graph: Graph, node: Node) -> list[tuple[Node, float]]:
    if node.kind == "sum" and graph.users.get(node) is not None and len(graph.users[node]) == 1:
        return list(zip((graph.resolve(n) for n in node.inputs), node.value, strict=True))
    plain = node.kind == "affine" and not node.value.sources and node.value.scale.ndim == 0
    if plain and not node.value.scale.is_meta and not bool(node.value.shift.any()):
        return [(graph.resolve(node.inputs[0]), float(node.value.scale))]
    return [(node, 1.0)]


def _sum(node: Node, terms: dict[Node, float]) -> Node:
    return Node("sum", list(terms), value=tuple(terms.values()), name=node.name, shape=node.shape)


def _scaled(node: Node, term: Node, factor: float) -> Node:
    scale = torch.tensor(factor, dtype=torch.float64)
    return Node("affine", [term], value=Affine(scale, torch.zeros_like(scale)), name=node.name, shape=node.shape)


def flatten_joins(graph: Graph) -> list[str]:
    """Concatenations of concatenations along the same axis, and products of products."""
    for node in graph.order:
        if node.kind not in ("cat", "product"):
            continue
        parts: list[Node] = []
        for source in (graph.resolve(n) for n in node.inputs):
            inner = source.kind == node.kind and source.label == node.label
            if inner and (node.kind == "cat" or len(graph.users.get(source, ())) == 1):
                parts += [graph.resolve(n) for n in source.inputs]
            else:
                parts.append(source)
        if len(parts) > len(node.inputs) and len(parts) <= 4096:
            graph.replace(node, Node(node.kind, parts, node.label, name=node.name, shape=node.shape))
    return []


def drop_zeros(graph: Graph) -> list[str]:
    """Terms that are zero for every input, by their weights."""
    said = []
    zero: set[Node] = set()
    for node in graph.order:
        inputs = [graph.resolve(n) in zero for n in node.inputs]
        if _always_zero(node, inputs):
            zero.add(node)
        elif node.kind == "sum" and any(inputs):
            terms = [(n, c) for n, c, gone in zip(node.inputs, node.value, inputs, strict=True) if not gone]
            said.append(
                f"{sum(inputs)} of the terms of '{node.name}' {'is' if sum(inputs) == 1 else 'are'} always zero"
            )
            kept = {graph.resolve(n): c for n, c in terms}
            if len(kept) == 1 and terms[0][1] == 1:
                graph.replace(node, graph.resolve(terms[0][0]))
            else:
                graph.replace(node, _sum(node, kept))
    return said


def _always_zero(node: Node, inputs: list[bool]) -> bool:
    if node.kind == "linear":
        if node.value.weight.is_meta or not is_zero([node.value.bias]):
            return False
        return inputs[0] or is_zero([node.value.weight])
    if node.kind == "affine":
        value = node.value
        return not value.scale.is_meta and is_zero([value.shift]) and (inputs[0] or is_zero([value.scale]))
    if node.kind == "sum":
        return all(inputs)
    if node.kind == "product":
        return any(inputs)
    if node.kind == "cat":
        return bool(inputs) and all(inputs)
    known = node.kind == "call" and isinstance(node.label, tuple) and node.label[0] in ZERO_OF_ZERO
    return known and bool(inputs) and all(inputs)


def add_parallel(graph: Graph, only_cancelling: bool = False) -> list[str]:
    """Terms of a sum that are layers on one value, or chains of them, are one layer: their kernels add up.

    Args:
        graph: It is changed.
        only_cancelling: Only where nothing is left of them, because the owner's network has such sums of its own.
    """
    said = []
    for node in graph.order:
        if node.kind != "sum":
            continue
        groups: dict[Node, dict[int, Linear]] = defaultdict(dict)
        for index, term in enumerate(node.inputs):
            for source, value in reaches(graph, term):
                groups[source][index] = value
        for index, term in enumerate(node.inputs):
            _with_the_value_itself(groups, index, term)
        for source, values in groups.items():
            if len(values) < 2:
                continue
            places = list(values)
            total = _added([(values[i], node.value[i]) for i in places])
            if total is None or (only_cancelling and not is_zero([total.weight, total.bias])):
                continue
            names = ", ".join(f"'{node.inputs[i].name}'" for i in places[:3])
            said.append(f"{names} read one value and are added: they are one layer")
            made = Node("linear", [source], value=total, name=node.inputs[places[0]].name, shape=node.shape)
            rest = {n: c for i, (n, c) in enumerate(zip(node.inputs, node.value, strict=True)) if i not in places}
            graph.replace(node, made if not rest else _sum(node, {**rest, made: 1.0}))
            break
    return said


def _with_the_value_itself(groups: dict[Node, dict[int, Linear]], index: int, term: Node) -> None:
    """The value that other terms are layers of, or a norm of it, is a layer as well."""
    for source, affine in ((term, None), *((term.inputs[0], term.value) for _ in [0] if term.kind == "affine")):
        other = next(iter(groups.get(source, {}).values()), None)
        shape = source.shape
        if other is None or index in groups[source] or not other.rank or not isinstance(shape, tuple):
            continue
        width, rank = shape[1], other.rank
        ones = torch.ones(width, 1, *(1,) * rank, dtype=other.weight.dtype, device=other.weight.device)
        itself = Linear(ones, None, (1,) * rank, ((0, 0),) * rank, (1,) * rank, width)
        groups[source][index] = itself if affine is None else scaled(itself, affine)


def _added(terms: list[tuple[Linear, float]]) -> Linear | None:
    values = common_geometry([value for value, _ in terms])
    if values is None:
        return None
    factors = [factor for _, factor in terms]
    weight = sum(v.weight.detach().double() * f for v, f in zip(values, factors, strict=True))
    biases = [v.bias.detach().double() * f for v, f in zip(values, factors, strict=True) if v.bias is not None]
    assert isinstance(weight, Tensor), "there are terms"
    bias = sum(biases[1:], biases[0]).to(values[0].weight.dtype) if biases else None
    return values[0].with_numbers(weight.to(values[0].weight.dtype), bias)
