"""Data movement: concatenation, flattening, reshaping, moving axes. Nothing is computed, channels only travel."""

from __future__ import annotations

from math import prod
from typing import Any

from canon.graph.rules.folding import MOVES, fold, moved, unfold
from canon.graph.rules.registry import Call, rule
from canon.graph.state import State
from canon.graph.values import ChannelAxis, Parts, Value, shape_of

VIEWS = frozenset(
    "getitem slice select narrow flatten reshape view unflatten _unsafe_view squeeze unsqueeze expand expand_as "
    "squeeze_ unsqueeze_ permute transpose movedim swapaxes swapdims moveaxis t numpy_T mT transpose_ chunk split "
    "split_with_sizes tensor_split unbind".split()
)
"""Operations whose result may share the memory of their operand."""


@rule("cat", "concat", "concatenate")
def cat(state: State, call: Call, tensors: Any, dim: int = 0, **kwargs: Any) -> ChannelAxis | None:
    """Along the channels segments follow each other; along positions all operands are one space."""
    values = [v for v in tensors if isinstance(v, Value)]
    labelled = [v for v in values if v.channels is not None]
    if not labelled:
        return None
    dim = int(kwargs.get("axis", dim)) % call.rank
    axes = {v.channels.axis for v in labelled if v.channels is not None}
    if len(axes) > 1:
        state.pin_value(values, "cat of values whose channels lie on different axes")
        return None
    (axis,) = axes
    if axis == dim:
        return ChannelAxis(axis, state.blocks.join([_parts(state, v, axis) for v in values]))
    first = labelled[0].channels
    assert first is not None, "filtered above"
    if len(labelled) < len(values):
        state.pin_value(values, "cat with a value that has fixed coordinates")
        return None
    output = state.homogeneous(first.parts, lambda v: v, keeps_constants=False, reach="other")
    for value in labelled[1:]:
        assert value.channels is not None, "filtered above"
        if not state.unite(first.parts, value.channels.parts, "cat of differently cut axes"):
            return None
        state.tie(first.parts, value.channels.parts)
    return ChannelAxis(axis, output)


@rule("stack")
def stack(state: State, call: Call, tensors: Any, dim: int = 0, **kwargs: Any) -> ChannelAxis | None:
    """Values side by side along a new axis: all of them are one space."""
    values = [v for v in tensors if isinstance(v, Value)]
    channel_axes = [v.channels for v in values if v.channels is not None]
    if not channel_axes:
        return None
    first, dim = channel_axes[0], int(dim) % call.rank
    if len(channel_axes) < len(tensors) or any(channels.axis != first.axis for channels in channel_axes):
        state.pin_value(values, "stack with a value that has fixed coordinates, or other axes")
        return None
    output = state.homogeneous(first.parts, lambda v: v, keeps_constants=False, reach="other")
    for channels in channel_axes[1:]:
        if not state.unite(first.parts, channels.parts, "stack of differently cut axes"):
            return None
        state.tie(first.parts, channels.parts)
    return ChannelAxis(first.axis + (dim <= first.axis), output)


def _parts(state: State, value: Value, axis: int) -> Parts:
    if value.channels is not None:
        return value.channels.parts
    channels = state.open(value.shape[axis], axis)
    if value.zeros:
        state.keep_width(channels.parts, "zeros are made by number")
    else:
        state.pin(channels.parts, "concatenated value has fixed coordinates")
    return channels.parts


@rule("chunk")
def chunk(state: State, call: Call, x: Value, chunks: int, dim: int = 0) -> list[ChannelAxis | None] | None:
    """Equal parts of the channels; they must stay equal, so in the end they must be one space or stay."""
    dim = int(dim) % x.data.ndim
    if x.channels is None:
        return None
    if x.channels.axis != dim:
        return [x.channels for _ in call.out]
    if len(call.out) != chunks:
        state.pin(x.channels.parts, "chunk into fewer parts than asked for")
        return None
    rest, pieces = x.channels.parts, []
    for piece in call.out:
        cut = state.blocks.cut_parts(rest, int(piece.shape[dim]))
        if cut is None:
            state.pin(x.channels.parts, "chunk through one channel's positions")
            return None
        pieces.append(cut[0])
        rest = cut[1]
    state.equal.append((pieces, state.node))
    return [ChannelAxis(dim, piece) for piece in pieces]


@rule("split", "split_with_sizes", "tensor_split")
def split(state: State, call: Call, x: Value, sizes: Any, dim: int = 0) -> list[ChannelAxis | None] | None:
    """Sizes written into the forward pass do not follow a rewrite: pieces keep their widths.

    A program holds all sizes as numbers; there the pieces are cut, and the model is asked whether its numbers follow.
    """
    if x.channels is None:
        return None
    axis = int(dim) % x.data.ndim
    if axis != x.channels.axis:
        return [x.channels for _ in call.out]
    lengths = [int(piece.shape[axis]) for piece in call.out]
    pieces = cut(state, x.channels.parts, lengths)
    if pieces is None:
        state.pin(x.channels.parts, "split with fixed sizes")
        return None
    if not state.assumes or call.name == "tensor_split":
        for piece in pieces:
            state.keep_width(piece, "split with fixed sizes")
        return [ChannelAxis(axis, piece) for piece in pieces]
    for index, piece in enumerate(pieces):
        listed = isinstance(sizes, (list, tuple))
        if not listed and index == len(pieces) - 1 and lengths[index] != sizes:
            state.pin(x.channels.parts, "split into pieces of different sizes")
            return None
        state.assume(lengths[index], piece, (1, index) if listed else (1,))
    if not isinstance(sizes, (list, tuple)):
        state.equal.append((pieces, state.node))
    return [ChannelAxis(axis, piece) for piece in pieces]


def cut(state: State, parts: Parts, lengths: list[int]) -> list[Parts] | None:
    """An axis in pieces of some lengths; None where that would cut through one channel's positions."""
    rest, pieces = parts, []
    for length in lengths:
        cut = state.blocks.cut_parts(rest, length)
        if cut is None:
            return None
        pieces.append(cut[0])
        rest = cut[1]
    return pieces


@rule("unbind")
def unbind(state: State, call: Call, x: Value, dim: int = 0) -> list[ChannelAxis | None] | None:
    """One value per position; one value per channel would fix their number."""
    if x.channels is None:
        return None
    dim = int(dim) % x.data.ndim
    if dim == x.channels.axis:
        state.pin(x.channels.parts, "unbind of the channels")
        return None
    return [ChannelAxis(x.channels.axis - (dim < x.channels.axis), x.channels.parts) for _ in call.out]


@rule("getitem")
def getitem(state: State, call: Call, x: Value, index: Any) -> ChannelAxis | None:
    """Indexing of other axes keeps the channels."""
    if x.channels is None:
        return None
    items = list(index) if isinstance(index, tuple) else [index]
    if all(i is None or i is Ellipsis or type(i) in (int, slice) for i in items):
        if not any(i is Ellipsis for i in items):
            items.append(Ellipsis)
        at = next(k for k, i in enumerate(items) if i is Ellipsis)
        named = sum(i is not None for i in items) - 1
        items[at : at + 1] = [slice(None)] * (x.data.ndim - named)
        axis = new = 0
        for item in items:
            if item is not None and axis == x.channels.axis:
                if item == slice(None):
                    return ChannelAxis(new, x.channels.parts)
                piece = _written_in(state, x, item) if type(item) is slice else None
                if piece is not None:
                    return ChannelAxis(new, piece)
                break
            axis += item is not None
            new += type(item) is not int
    state.pin(x.channels.parts, "indexing of the channels")
    return None


def _written_in(state: State, x: Value, stretch: slice) -> Parts | None:
    """A stretch of the channels between two numbers: what it is cut from keeps its widths."""
    assert x.channels is not None, "callers check the channels"
    ends = (stretch.start, stretch.stop, stretch.step)
    if not all(end is None or type(end) is int for end in ends):
        return None
    size = int(x.shape[x.channels.axis])
    begin, end, step = stretch.indices(size)
    pieces = cut(state, x.channels.parts, [begin, end - begin, size - end]) if step == 1 and begin < end else None
    if pieces is None:
        return None
    for piece in pieces:
        state.keep_width(piece, "a stretch of the channels is taken by number")
    return pieces[1]


@rule("slice", "narrow", "select")
def pick(state: State, call: Call, x: Value, dim: int, *args: Any) -> ChannelAxis | None:
    """A stretch or a position of one axis."""
    if x.channels is None:
        return None
    axis, dim = x.channels.axis, int(dim) % x.data.ndim
    if dim == axis:
        # A slice that reaches to the end of every axis is the whole axis; any number is a width written in.
        start, stop, step = (*args, None, None, None)[:3]
        if call.name != "slice" or start or step not in (None, 1) or (stop is not None and stop < 2**62):
            piece = _stretch(state, x, start, stop) if call.name == "slice" and step in (None, 1) else None
            if piece is None:
                state.pin(x.channels.parts, "indexing of the channels")
                return None
            return ChannelAxis(axis, piece)
        return x.channels
    return ChannelAxis(axis - (call.name == "select" and dim < axis), x.channels.parts)


def _stretch(state: State, x: Value, start: Any, stop: Any) -> Parts | None:
    """A slice of the channels in a program, whose ends the model must move along with them."""
    assert x.channels is not None, "callers check the channels"
    size = int(x.shape[x.channels.axis])
    begin = int(start or 0)
    end = size if stop is None or stop >= 2**62 else int(stop)
    if not state.assumes or not 0 <= begin < end <= size:
        return None
    pieces = cut(state, x.channels.parts, [begin, end - begin])
    if pieces is None:
        return None
    if begin:
        state.assume(begin, pieces[0], (2,))
    if end < size:
        state.assume(end, (*pieces[0], *pieces[1]), (3,))
    return pieces[1]


@rule("flatten")
def flatten(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """`C×H×W` becomes one axis in which every channel is repeated `H·W` times."""
    return _reshaped(state, call, x, None)


@rule("reshape", "view", "_unsafe_view")
def reshape(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """The channel axis survives, or absorbs the axes behind it; a size written as a number stays that number."""
    if x.channels is None:
        state.pin_value([args, kwargs], f"{call.name} of a value that has fixed coordinates")
        return None
    shape = _sizes(args, kwargs)
    if len(shape) != call.rank or not all(isinstance(size, int) for size in shape):
        state.pin_value([x, args, kwargs], f"{call.name} that cannot be followed")
        return None
    return _reshaped(state, call, x, shape)


def _sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    given = (*args, *kwargs.values())
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given


def _reshaped(state: State, call: Call, x: Value, sizes: tuple[Any, ...] | None) -> ChannelAxis | None:
    if x.channels is None:
        return None
    if x.channels.folded:
        whole = unfold(state, call, x)
        state.pin_value([] if whole is not None else x, "reshape splits the channel axis")
        state.pin_value(sizes, "the number of channels is written into a reshape")
        return whole
    before, after, axis = tuple(x.shape), tuple(call.out.shape), x.channels.axis
    left, size, right = prod(before[:axis]), before[axis], prod(before[axis + 1 :])
    for new in range(len(after)):
        if prod(after[:new]) != left or after[new] % size:
            continue
        repeat = after[new] // size
        if repeat * prod(after[new + 1 :]) != right:
            continue
        parts = tuple(part.repeated(repeat) for part in x.channels.parts)
        if sizes is not None:
            others = [s for i, s in enumerate(sizes) if i != new]
            state.pin_value(others, "the number of channels is the size of another axis")
            state.follow_size(sizes[new], parts, "the reshape has the number of channels written in", (1, new))
        return ChannelAxis(new, parts)
    folded = fold(state, call, x)
    state.pin_value([x, sizes] if folded is None else sizes, "reshape splits the channel axis")
    return folded


@rule("unflatten")
def unflatten(state: State, call: Call, x: Value, dim: int, sizes: Any) -> ChannelAxis | None:
    """One axis becomes several, with their sizes written in."""
    written = "the number of channels is written into unflatten"
    state.pin_value(sizes, written)
    if x.channels is None:
        return None
    if int(dim) % x.data.ndim == x.channels.axis:
        state.keep_width(x.channels.parts, written)
        return _reshaped(state, call, x, None)
    later = int(dim) % x.data.ndim < x.channels.axis
    return ChannelAxis(x.channels.axis + (call.rank - x.data.ndim) * later, x.channels.parts)


@rule("expand", "expand_as")
def expand(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """Axes of size one are broadcast; the channels must not be one of them."""
    sizes = _sizes(args, kwargs)
    if call.name == "expand_as":
        sizes = shape_of(sizes[0])
    if x.channels is None:
        state.pin_value(sizes, f"{call.name} of a value that has fixed coordinates")
        return None
    axis = x.channels.axis + call.rank - x.data.ndim
    if call.out.shape[axis] != x.shape[x.channels.axis]:
        state.pin_value([x, sizes], "one channel broadcast over many")
        return None
    others = [s for i, s in enumerate(sizes) if i != axis]
    state.pin_value(others, "the number of channels is the size of another axis")
    state.follow_size(sizes[axis], x.channels.parts, "the expand has the number of channels written in", (1, axis))
    return ChannelAxis(axis, x.channels.parts)


@rule("squeeze", "unsqueeze", "squeeze_", "unsqueeze_")
def unit_axes(state: State, call: Call, x: Value, dim: Any = None) -> ChannelAxis | None:
    """Axes of size one come and go; channels keep their order."""
    if x.channels is None:
        return None
    axis, rank = x.channels.axis, x.data.ndim
    if call.name.startswith("unsqueeze"):
        new = int(dim) % (rank + 1)
        return ChannelAxis(axis + (new <= axis), x.channels.parts)
    listed = range(rank) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    gone = {int(d) % rank for d in listed if x.shape[int(d)] == 1}
    if axis in gone:
        state.pin(x.channels.parts, "squeeze of the channel axis")
        return None
    return ChannelAxis(axis - sum(d < axis for d in gone), x.channels.parts)


@rule(*sorted(MOVES))
def move(state: State, call: Call, x: Value, *args: Any, **kwargs: Any) -> ChannelAxis | None:
    """The channel axis goes where the permutation takes it."""
    if x.channels is None:
        return None
    rank, values = x.data.ndim, [*args, *kwargs.values()]
    order = list(range(rank))
    if call.name == "permute":
        dims = values[0] if isinstance(values[0], (tuple, list)) else values
        order = [int(d) % rank for d in dims]
    elif call.name in ("t", "numpy_T"):
        order.reverse()
    elif call.name == "mT":
        order[-2:] = order[:-3:-1]
    elif call.name in ("movedim", "moveaxis"):
        if not all(isinstance(v, int) for v in values):
            state.pin(x.channels.parts, "movedim of several axes")
            return None
        source, target = (int(v) % rank for v in values)
        order.insert(target, order.pop(source))
    else:
        a, b = (int(v) % rank for v in values[:2])
        order[a], order[b] = order[b], order[a]
    return moved(x.channels, order)


__all__ = [
    "VIEWS", "cat", "chunk", "cut", "expand", "flatten", "getitem", "move", "pick", "reshape", "split", "stack",
    "unbind", "unflatten", "unit_axes",
]  # fmt: skip
