"""What a value is of values further back: through layers and norms with nothing between them, and through cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from canon.normal.kernels import behind, preceded, scaled
from canon.normal.nodes import Affine, Graph, Linear, Node

DEEPEST: Final = 6
"""Layers and cuts that are followed back."""

CUTS: Final = ("split", "chunk", "tensor_split")


@dataclass(frozen=True, eq=False)
class Cut:
    """A stretch of another value."""

    source: Node
    axis: int
    start: int
    length: int


def cut_of(node: Node) -> Cut | None:
    """What a slice, a narrowed value, or a part of a split is a stretch of; None where it is none of these."""
    label: Any = node.label
    if node.kind != "call" or not isinstance(label, tuple) or len(node.inputs) != 1 or len(label) < 2:
        return None
    source = node.inputs[0]
    operands: Any = label[1][1][2:] if label[0] in ("getitem", "narrow") and label[1][2] == ("{",) else ()
    if label[0] == "narrow" and len(operands) == 3 and isinstance(source.shape, tuple):
        axis, start, length = operands
        return Cut(source, axis % len(source.shape), start % source.shape[axis], length)
    if label[0] != "getitem" or len(operands) != 1:
        return None
    if isinstance(operands[0], int):
        return _part(source, operands[0])
    return _slice(source, operands[0])


def _part(parts: Node, index: int) -> Cut | None:
    """A part of a split, by the shapes of all parts."""
    whole = parts.inputs[0].shape if len(parts.inputs) == 1 else None
    label: Any = parts.label
    if parts.kind != "call" or not isinstance(label, tuple) or label[0] not in CUTS:
        return None
    if not isinstance(whole, tuple) or not isinstance(parts.shape, list):
        return None
    for axis, size in enumerate(whole):
        lengths = [shape[axis] for shape in parts.shape]
        others = all((*s[:axis], *s[axis + 1 :]) == (*whole[:axis], *whole[axis + 1 :]) for s in parts.shape)
        if others and sum(lengths) == size and len(lengths) > 1:
            index %= len(lengths)
            return Cut(parts.inputs[0], axis, sum(lengths[:index]), lengths[index])
    return None


def _slice(source: Node, chosen: Any) -> Cut | None:
    slices = chosen[1:] if isinstance(chosen, tuple) and chosen[:1] == ("[",) else (chosen,)
    if not isinstance(source.shape, tuple) or len(slices) > len(source.shape):
        return None
    found = None
    for axis, (part, size) in enumerate(zip(slices, source.shape, strict=False)):
        if (
            not isinstance(part, tuple)
            or part[0] != "slice"
            or any(n is not None and type(n) is not int for n in part[1:])
        ):
            return None
        start, stop, step = slice(*part[1:]).indices(size)
        if (start, stop, step) == (0, size, 1):
            continue
        if found is not None or step != 1 or stop <= start:
            return None
        found = Cut(source, axis, start, stop - start)
    return found


def sources(graph: Graph, term: Node) -> Iterator[tuple[Node, Node | Cut]]:
    """Values that one is made from by layers, norms and cuts alone, nearest first, each with what reads it."""
    reader: Node | Cut = term
    source = term
    for _ in range(DEEPEST):
        cut = cut_of(source) if source is not term else None
        if cut is not None:
            reader, source = cut, cut.source
        elif source.kind in ("linear", "affine") and graph.alone(source):
            reader, source = source, source.inputs[0]
        else:
            return
        yield source, reader


def read_by_layer(graph: Graph, value: Node) -> Node | None:
    """What the layer reads that makes a value, norms behind it left out; None where no layer makes it."""
    found = (source for source, reader in sources(graph, value) if isinstance(reader, Node) and reader.kind == "linear")
    return next(found, None)


def reaches(graph: Graph, term: Node) -> Iterator[tuple[Node, Linear]]:
    """Values that a term is one linear map of, nearest first, each with that map."""
    value: Linear | None = None
    behind_it: list[Affine] = []
    for source, reader in sources(graph, term):
        if isinstance(reader, Node) and reader.kind == "affine":
            if reader.value.scale.is_meta:
                return
            if value is None:
                behind_it.insert(0, reader.value)
                continue
            value = preceded(reader.value, value) if _by_rows(reader, value) else None
        else:
            before = reader.value if isinstance(reader, Node) else _selection(reader, value)
            if before is None or before.weight.is_meta:
                return
            value = before if value is None else behind(before, value)
            while behind_it and value is not None:
                value = scaled(value, behind_it.pop(0)) if _by_rows(term, value) else None
        if value is None:
            return
        yield source, value


def _by_rows(affine: Node, layer: Linear) -> bool:
    """Whether an affine map goes by the axis along which a layer next to it has its rows or columns."""
    shape = affine.shape
    return affine.value.scale.ndim == 0 or (isinstance(shape, tuple) and rows_axis(layer, len(shape)) == 1)


def rows_axis(layer: Linear, rank: int) -> int:
    """Along which axis of a value of so many axes a layer puts its rows."""
    return 1 if layer.rank else rank - 1


def _selection(cut: Cut, reader: Linear | None) -> Linear | None:
    """A cut through channels as a layer; None where it is through something else."""
    if reader is None:
        return None
    shape, rank = cut.source.shape, reader.rank
    if cut.axis != rows_axis(reader, len(shape)) or (rank and len(shape) != rank + 2):
        return None
    like = reader.weight
    weight = torch.zeros(cut.length, shape[cut.axis], *(1,) * rank, dtype=like.dtype, device=like.device)
    places = torch.arange(cut.length, device=like.device)
    weight[places, places + cut.start] = 1
    return Linear(weight, None, (1,) * rank, ((0, 0),) * rank, (1,) * rank)
