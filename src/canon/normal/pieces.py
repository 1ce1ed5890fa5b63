"""One layer that is read in parts is several layers: a fused projection by the rows that each reader has.

Views are followed from a layer on: reshapes, turned axes, splits, slices. Where every reader has rows of its own, each
gets a layer with these rows, and what is left of the views is one operation that moves entries (`layout`). So it means
nothing how queries, keys and values are cut out of one projection, nor whether there are three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, fx

from canon.normal.nodes import Graph, Linear, Node
from canon.normal.patterns import called

MOST_ENTRIES: Final = 1 << 23
"""Of a layer's output whose entries are followed."""

RESHAPES: Final = ("view", "reshape", "unflatten", "flatten", "squeeze", "unsqueeze", "_unsafe_view")
MOVES: Final = (
    "permute", "transpose", "movedim", "swapaxes", "swapdims", "moveaxis", "chunk", "split", "split_with_sizes",
    "tensor_split", "unbind", "narrow", "select", "t",
)  # fmt: skip
ASKED: Final = (str(getattr), "size", "dim", "numel")
"""What asks a value for its size alone."""

SAME: Final = ("attention_width", "contiguous", "clone", "identity", "detach")

Places = Tensor | Sequence[Tensor]
"""By entry of a view, or of each part of a split: where it stood in the layer's output."""


class Pieces:
    """Which entries of which layer's output values hold."""

    def __init__(self) -> None:
        self._of: dict[Node, tuple[Node, Places]] = {}

    def follow(self, node: fx.Node, name: str | None, made: Node, values: Mapping[fx.Node, Node]) -> None:
        """Note what a value is a view of, if it is one."""
        source = node.args[0] if node.args else None
        operation = _view(node, name, made.shape)
        if not isinstance(source, fx.Node) or operation is None:
            return
        base, places = self._of.get(values[source]) or (values[source], None)
        if places is None:
            if base.kind != "linear" or not _plain(base) or made is base:
                return
            places = torch.arange(prod(base.shape)).view(base.shape)
        try:
            self._of[made] = base, operation(places)
        except (TypeError, ValueError, IndexError, RuntimeError, AttributeError):
            return  # sizes that are computed, or what is no view

    def turned(self, value: Node) -> Node:
        """A value with its last two axes turned."""
        shape = (*value.shape[:-2], value.shape[-1], value.shape[-2])
        *rest, last, before = range(len(shape))
        made = Node("call", [value], ("permute", (*rest, before, last)), name=value.name, shape=shape)
        base, places = self._of.get(value) or (value, None)
        if isinstance(places, Tensor):
            self._of[made] = base, places.transpose(-2, -1)
        return made

    def apart(self, graph: Graph) -> None:
        """Put layers of their own in the place of parts."""
        views: dict[Node, list[Node]] = {}
        for node in graph.order:
            if node in self._of:
                views.setdefault(self._of[node][0], []).append(node)
        for base, found in views.items():
            if base not in graph.users:
                continue
            inside = {base, *found}
            inside |= {user for node in inside for user in graph.users[node] if called(user, *ASKED)}
            read = [node for node in found if any(user not in inside for user in graph.users[node])]
            if all(user in inside for user in graph.users[base]):
                self._cut(graph, base, read)
        graph.settle()

    def _cut(self, graph: Graph, base: Node, read: Sequence[Node]) -> None:
        value: Linear = base.value
        axis = 1 if value.rank else len(base.shape) - 1
        inner, width = prod(base.shape[axis + 1 :]), base.shape[axis]
        pieces: list[tuple[Node, Tensor, Tensor]] = []
        for node in read:
            places = self._of[node][1]
            if not isinstance(places, Tensor):
                return
            rows = torch.unique(places // inner % width)
            if places.numel() * width != prod(base.shape) * rows.numel() or places.unique().numel() < places.numel():
                return
            pieces.append((node, rows, places))
        owned = torch.cat([rows for _, rows, _ in pieces]) if pieces else torch.empty(0)
        if owned.unique().numel() < max(owned.numel(), width):
            return  # rows that several read, or nobody
        for node, rows, places in pieces:
            shape = (*base.shape[:axis], len(rows), *base.shape[axis + 1 :])
            part = base if len(rows) == width else _part(base, rows, shape)
            rank = torch.searchsorted(rows, (places // inner % width).contiguous())
            entry = (places // (inner * width) * len(rows) + rank) * inner + places % inner
            graph.replace(node, _laid_out(part, entry, node))


def _plain(base: Node) -> bool:
    value: Linear = base.value
    known = isinstance(base.shape, tuple) and prod(base.shape) <= MOST_ENTRIES and len(base.shape) > 2
    return known and value.groups == 1 and value.transposed is None


def _part(base: Node, rows: Tensor, shape: tuple[int, ...]) -> Node:
    value: Linear = base.value
    start, stop = int(rows[0]), int(rows[-1]) + 1
    chosen: Any = slice(start, stop) if stop - start == len(rows) else rows.to(value.weight.device)
    bias = None if value.bias is None else value.bias.detach()[chosen]
    made = replace(value, weight=value.weight.detach()[chosen], bias=bias, part=(value, rows))
    return Node("linear", base.inputs, base.label, made, name=base.name, shape=shape)


def _laid_out(part: Node, entry: Tensor, node: Node) -> Node:
    """A layer's entries moved as a view moves them; the layer itself where they stay."""
    if tuple(entry.shape) == part.shape and bool((entry.flatten() == torch.arange(entry.numel())).all()):
        return part
    label = ("layout", tuple(entry.shape), sha256(entry.contiguous().numpy().tobytes()).hexdigest())
    return Node("call", [part], label, name=node.name, shape=node.shape)


def _view(node: fx.Node, name: str | None, shape: Any) -> Callable[[Places], Places] | None:
    """What an operation does to the places of its operand's entries; None where it does more than move them."""
    base = (name or "").removesuffix("_") if name != "_unsafe_view" else "view"
    if base in SAME:
        return lambda places: places
    if base in RESHAPES and isinstance(shape, tuple):
        return lambda places: _whole(places).reshape(shape)
    if base == "getitem":
        return lambda places: places[node.args[1]]  # type: ignore[index]
    if base in MOVES:
        return lambda places: getattr(_whole(places), base)(*node.args[1:], **node.kwargs)
    return None


def _whole(places: Places) -> Tensor:
    if not isinstance(places, Tensor):
        raise TypeError("parts are taken one by one")
    return places
