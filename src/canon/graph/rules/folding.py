"""A channel axis in several axes, and back: how a channel shuffle is written.

`reshape(g, c/g)`, `transpose`, `reshape(c)` takes channels apart into groups and puts them together in another order.
In between, only their axes may be moved; what computes on them there pins. The number of channels must stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from canon.graph.rules.activations import IDENTITY
from canon.graph.rules.registry import Call, rule
from canon.graph.state import State
from canon.graph.values import ChannelAxis, Value

MOVES = frozenset("permute transpose movedim swapaxes swapdims moveaxis t numpy_T mT transpose_".split())
"""Operations that put axes in another order."""

FOLDING = MOVES | {"reshape", "view", "_unsafe_view", "flatten", *IDENTITY}
"""Operations that know channels in several axes."""

_FIXED = "the number of channels is written into a reshape"


def fold(state: State, call: Call, x: Value) -> ChannelAxis | None:
    """The channel axis in several; None where the new axes are not made of it alone."""
    if x.channels is None or x.channels.folded:
        return None
    before, after, axis = tuple(x.shape), tuple(call.out.shape), x.channels.axis
    for first in range(len(after)):
        for last in range(first + 2, len(after) + 1):
            whole = prod(after[first:last]) == before[axis] and prod(after[:first]) == prod(before[:axis])
            if whole and prod(after[last:]) == prod(before[axis + 1 :]):
                state.keep_width(x.channels.parts, _FIXED)
                return ChannelAxis(first, x.channels.parts, tuple(range(first, last)))
    return None


def moved(channels: ChannelAxis, order: Sequence[int]) -> ChannelAxis:
    """Where the axes of a channels are when the axes `order` of a value become its first, second, ..."""
    folded = tuple(order.index(axis) for axis in channels.folded)
    return ChannelAxis(folded[0] if folded else order.index(channels.axis), channels.parts, folded)


def unfold(state: State, call: Call, x: Value) -> ChannelAxis | None:
    """One axis again, its channels in the order of the axes; None where these do not become one."""
    if x.channels is None or not x.channels.folded:
        return None
    folded, before, after = x.channels.folded, tuple(x.shape), tuple(call.out.shape)
    if before == after:
        return x.channels
    here = sorted(folded)
    if here != list(range(here[0], here[-1] + 1)):
        return None
    size, sizes = prod(before[axis] for axis in here), [before[axis] for axis in folded]
    for new, length in enumerate(after):
        repeat = length // size
        if length % size or prod(after[:new]) != prod(before[: here[0]]):
            continue
        if repeat * prod(after[new + 1 :]) == prod(before[here[-1] + 1 :]):
            entries = torch.arange(size).reshape(sizes).permute([folded.index(axis) for axis in here]).flatten()
            parts = state.blocks.rearrange(x.channels.parts, entries.argsort().tolist())
            return None if parts is None else ChannelAxis(new, tuple(part.repeated(repeat) for part in parts))
    return None


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(state: State, call: Call, x: Value, groups: int) -> ChannelAxis | None:
    """The same as one operation."""
    if x.channels is None:
        return None
    size = int(x.shape[x.channels.axis])
    parts = None
    if x.channels.axis == 1:
        entries = torch.arange(size).reshape(int(groups), -1).T.flatten()
        parts = state.blocks.rearrange(x.channels.parts, entries.argsort().tolist())
    if parts is None:
        state.pin(x.channels.parts, "a channel shuffle that cannot be followed")
        return None
    state.keep_width(parts, _FIXED)
    return ChannelAxis(1, parts)


__all__ = ["FOLDING", "MOVES", "channel_shuffle", "fold", "moved", "unfold"]
