"""A residual stream turned: `y' = R·y`, with another factor for each channel behind its norms."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from canon.graph import ChannelGraph
from canon.graph.experts import channel_tensors
from canon.graph.mapped import results
from canon.graph.streams import Stream
from canon.rewrite.surgery import replace_tensors


def turn_stream(
    model: nn.Module, graph: ChannelGraph, stream: Stream, turn: Tensor, gains: Mapping[str, Tensor]
) -> nn.Module:
    """A copy of a model with a stream turned. What norms give, `x = g·n + β`, becomes `T·x` with `T = g'·R·g⁻¹`.

    Args:
        model: The model that the graph was traced from. It is not changed.
        graph: Its channel graph.
        stream: One of its streams.
        turn: `R`, orthogonal, in float64.
        gains: `g'`: the factors behind each norm afterwards, by name. None of them, and none before, is zero.
    """
    tensors = channel_tensors(model, graph.orders)
    changed = results(tensors)

    def write(name: str, axis: int, change: Tensor, start: int = 0) -> None:
        old = changed.get(name, tensors[name]).detach()
        new = old.clone()
        along = old.movedim(axis, -1)[..., start : start + len(change)].double() @ change.T.to(old.device)
        new.movedim(axis, -1)[..., start : start + len(change)] = along.to(old.dtype)
        changed[name] = new

    with torch.no_grad():
        for weight, axis, bias in stream.writers:
            write(weight, axis, turn)
            if bias is not None:
                write(bias, 0, turn)
        for reader in stream.readers:
            before = after = torch.ones(stream.width, dtype=torch.float64)
            if reader.gain is not None:
                before, after = tensors[reader.gain].detach().double(), gains[reader.gain].detach().double()
                changed[reader.gain] = after.to(tensors[reader.gain].dtype)
            forth = after[:, None] * turn / before
            back = before[:, None] * turn.T / after
            for weight, axis, start in reader.weights:
                write(weight, axis, back.T, start)
            if reader.shift is not None:
                write(reader.shift, 0, forth)
    return replace_tensors(model, changed, graph.orders)
