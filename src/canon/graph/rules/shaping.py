"""Data movement: concatenation, flattening, reshaping, moving axes. Nothing is computed, channels only travel."""

from __future__ import annotations

from math import prod
from typing import Any

from canon.graph.blocks import Part
from canon.graph.rules.registry import Call, rule
from canon.graph.state import Layout, Parts, State, Value


@rule("cat", "concat", "concatenate")
def cat(state: State, call: Call, tensors: Any, dim: int = 0, **kwargs: Any) -> Layout | None:
    """Along the channels segments follow each other; along positions all operands are one space."""
    values = [v for v in tensors if isinstance(v, Value)]
    labelled = [v for v in values if v.layout is not None]
    if not labelled:
        return None
    dim = int(kwargs.get("axis", dim)) % call.rank
    axes = {v.layout.axis for v in labelled if v.layout is not None}
    if len(axes) > 1:
        state.pin_value(values, "cat of values whose channels lie on different axes")
        return None
    (axis,) = axes
    if axis == dim:
        return Layout(axis, tuple(p for v in values for p in _parts(state, v, axis)))
    first = labelled[0].layout
    assert first is not None, "filtered above"
    if len(labelled) < len(values):
        state.pin_value(values, "cat with a value that has fixed coordinates")
        return None
    output = state.homogeneous(first.parts, lambda v: v, keeps_constants=False)
    for value in labelled[1:]:
        assert value.layout is not None, "filtered above"
        if not state.unite(first.parts, value.layout.parts, "cat of differently cut axes"):
            return None
        state.tie(first.parts, value.layout.parts)
    return Layout(axis, output)


def _parts(state: State, value: Value, axis: int) -> Parts:
    if value.layout is not None:
        return value.layout.parts
    layout = state.open(value.shape[axis], axis)
    state.pin(layout.parts, "concatenated value has fixed coordinates")
    return layout.parts


@rule("chunk")
def chunk(state: State, call: Call, x: Value, chunks: int, dim: int = 0) -> Any:
    """Equal parts of the channels; they must stay equal, so in the end they must be one space or stay."""
    dim = int(dim) % x.data.ndim
    if x.layout is None:
        return None
    if x.layout.axis != dim:
        return [x.layout for _ in call.out]
    rest, pieces = x.layout.parts, []
    for piece in call.out:
        cut = state.blocks.cut_parts(rest, int(piece.shape[dim]))
        if cut is None:
            state.pin(x.layout.parts, "chunk through one channel's positions")
            return None
        pieces.append(cut[0])
        rest = cut[1]
    state.equal.append((pieces, state.node))
    return [Layout(dim, piece) for piece in pieces]


@rule("split", "split_with_sizes", "tensor_split", "unbind")
def split(state: State, call: Call, x: Value, sizes: Any, dim: int = 0) -> Any:
    """Sizes written into the forward pass do not follow a rewrite: the channel axis must stay."""
    if x.layout is None:
        return None
    if int(dim) % x.data.ndim != x.layout.axis:
        return [x.layout for _ in call.out]
    state.pin(x.layout.parts, "split with fixed sizes")
    return None


@rule("getitem", "slice", "select", "narrow")
def getitem(state: State, call: Call, x: Value, *index: Any) -> Layout | None:
    """Indexing of other axes keeps the channels."""
    if x.layout is None:
        return None
    axis = x.layout.axis
    if call.name == "getitem":
        items = list(index[0]) if isinstance(index[0], tuple) else [index[0]]
        known = all(i is None or i is Ellipsis or isinstance(i, (int, slice)) for i in items)
        if known and Ellipsis not in items and None not in items and len(items) <= x.data.ndim:
            items += [slice(None)] * (x.data.ndim - len(items))
            if items[axis] == slice(None):
                lost = sum(isinstance(i, int) for i in items[:axis])
                return Layout(axis - lost, x.layout.parts)
    elif call.name in ("slice", "narrow"):
        start = index[1] if len(index) > 1 else 0
        whole = call.out.shape == x.shape and not start
        if int(index[0]) % x.data.ndim != axis or whole:
            return x.layout
    elif int(index[0]) % x.data.ndim != axis:
        return Layout(axis - (int(index[0]) % x.data.ndim < axis), x.layout.parts)
    state.pin(x.layout.parts, "indexing of the channels")
    return None


@rule("flatten")
def flatten(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> Layout | None:
    """`C×H×W` becomes one axis in which every channel is repeated `H·W` times."""
    return _reshaped(state, call, x, ())


@rule("reshape", "view", "unflatten", "_unsafe_view")
def reshape(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> Layout | None:
    """The channel axis survives, or absorbs the axes behind it; a size written as a number stays that number."""
    shape = call.literals[1:]
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    return _reshaped(state, call, x, shape)


def _reshaped(state: State, call: Call, x: Value, literal: tuple[Any, ...]) -> Layout | None:
    if x.layout is None:
        return None
    before, after, axis = tuple(x.shape), tuple(call.out.shape), x.layout.axis
    left, size, right = prod(before[:axis]), before[axis], prod(before[axis + 1 :])
    for new in range(len(after)):
        if prod(after[:new]) != left or after[new] % size:
            continue
        repeat = after[new] // size
        if repeat * prod(after[new + 1 :]) != right:
            continue
        if len(literal) == len(after) and literal[new] not in (-1, None):
            state.pin(x.layout.parts, "the reshape has the number of channels written in")
            return None
        parts = tuple(Part(p.block, p.repeat * repeat, p.point) for p in x.layout.parts)
        return Layout(new, parts)
    state.pin(x.layout.parts, "reshape splits the channel axis")
    return None


@rule("squeeze", "unsqueeze", "expand", "expand_as", "squeeze_", "unsqueeze_")
def unit_axes(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> Layout | None:
    """Axes of size one come and go, or are broadcast; channels keep their order."""
    if x.layout is None:
        return None
    axis, rank = x.layout.axis, x.data.ndim
    name = call.name.rstrip("_")
    if name in ("expand", "expand_as"):
        axis += call.rank - rank
        if call.out.shape[axis] != x.shape[x.layout.axis]:
            state.pin(x.layout.parts, "one channel broadcast over many")
            return None
        sizes = call.literals[1:]
        if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
            sizes = tuple(sizes[0])
        if name == "expand" and sizes[axis] not in (-1, None):
            state.pin(x.layout.parts, "the expand has the number of channels written in")
            return None
        return Layout(axis, x.layout.parts)
    dims = args[0] if args else kwargs.get("dim")
    if name == "unsqueeze":
        new = int(dims) % (rank + 1)
        return Layout(axis + (new <= axis), x.layout.parts)
    if dims is None:
        gone = {d for d in range(rank) if x.shape[d] == 1}
    else:
        listed = dims if isinstance(dims, (tuple, list)) else (dims,)
        gone = {int(d) % rank for d in listed if x.shape[int(d)] == 1}
    if axis in gone:
        state.pin(x.layout.parts, "squeeze of the channel axis")
        return None
    return Layout(axis - sum(d < axis for d in gone), x.layout.parts)


@rule("permute", "transpose", "movedim", "swapaxes", "swapdims", "moveaxis", "t", "transpose_")
def move(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> Layout | None:
    """The channel axis goes where the permutation takes it."""
    if x.layout is None:
        return None
    rank, values = x.data.ndim, [*args, *kwargs.values()]
    order = list(range(rank))
    if call.name == "permute":
        dims = values[0] if isinstance(values[0], (tuple, list)) else values
        order = [int(d) % rank for d in dims]
    elif call.name == "t":
        order.reverse()
    elif call.name in ("movedim", "moveaxis"):
        if not all(isinstance(v, int) for v in values):
            state.pin(x.layout.parts, "movedim of several axes")
            return None
        source, target = (int(v) % rank for v in values)
        order.insert(target, order.pop(source))
    else:
        a, b = (int(v) % rank for v in values[:2])
        order[a], order[b] = order[b], order[a]
    return Layout(order.index(x.layout.axis), x.layout.parts)


__all__ = [
    "cat", "chunk", "flatten", "getitem", "move", "reshape", "split", "unit_axes",
]  # fmt: skip
