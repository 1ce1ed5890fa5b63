"""LSTM, GRU and plain recurrent layers: all gates of a layer are one space, and what it remembers is read by itself.

A step is written down once. What came before it stands in it as an unknown function of the same channels: units are
then one class only if their rows agree for inputs and for what is remembered alike, and by induction they agree for
ever. What scale or sign passes the step passes what is remembered as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from canon.graph.rules.activations import gate
from canon.graph.rules.linear import dense
from canon.graph.rules.registry import Call, rule
from canon.graph.rules.shaping import cut
from canon.graph.state import State
from canon.graph.values import ChannelAxis, Parts, Value

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(
    state: State,
    call: Call,
    x: Value,
    *,
    layers: int,
    bidirectional: bool,
    projected: bool = False,
    **tensors: Value | None,
) -> list[Any] | None:
    """A layer of torch.nn that starts from zeros; layers and directions of one module must stay equally wide."""
    if projected:
        state.pin_value(x, "a recurrent layer with projections")
        return None
    before, found = x, []
    for layer in range(layers):
        ends = []
        for suffix in ("", "_reverse") if bidirectional else ("",):
            names = [f"{kind}_l{layer}{suffix}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            made = _layer(state, call, before, [tensors.get(name) for name in names])
            if made is None:
                return None
            ends.append(made)
            found.append(made)
        before = Value(
            call.out[0], ChannelAxis(call.out[0].ndim - 1, tuple(part for hidden, _ in ends for part in hidden))
        )
    if len(found) > 1:
        state.even.append([hidden for hidden, _ in found])
        if call.rest_read:
            for hidden, _ in found:
                state.pin(hidden, "what all layers of one module remember is read")
    axis = before.data.ndim - 1
    last = [ChannelAxis(axis, parts) for parts in found[0]] if len(found) == 1 else [None, None]
    assert before.channels is not None, "made above"
    return [before.channels, last if call.name == "lstm" else last[0]]


def _layer(state: State, call: Call, x: Value, tensors: list[Value | None]) -> tuple[Parts, Parts] | None:
    """What one layer gives, and what it remembers beside."""
    weight_in, weight_back, bias_in, bias_back = tensors
    assert weight_in is not None, "every recurrent layer has both"
    assert weight_back is not None, "every recurrent layer has both"
    axis, width = x.data.ndim - 1, int(weight_back.shape[1])

    def gates(given: Value, weight: Value, bias: Value | None) -> list[Parts] | None:
        named = replace(call, layer=weight.param or call.layer)
        made = dense(state, named, given, weight, bias, axis, axis, (0, 1), 1, False, None)
        return None if made is None else cut(state, made.parts, [width] * _GATES[call.name])

    pieces = gates(x, weight_in, bias_in)
    different = "gates of different widths"
    if pieces is None or not all(state.unite(pieces[0], piece, different) for piece in pieces[1:]):
        return None
    remembered, cell = (state.stage("activation", [pieces[0]], keeps_constants=False) for _ in range(2))
    again = gates(Value(x.data, ChannelAxis(axis, remembered)), weight_back, bias_back)
    if again is None or not all(state.unite(pieces[0], piece, different) for piece in again):
        return None
    hidden, kept = _STEPS[call.name](state, pieces, again, remembered, cell)
    state.tie(remembered, hidden)
    state.tie(cell, kept)
    return hidden, kept


def _plus(state: State, a: Parts, b: Parts) -> Parts:
    state.tie(a, b)
    output = state.stage("add", [a, b])
    state.tie(a, output)
    return output


def _lstm(state: State, x: list[Parts], h: list[Parts], remembered: Parts, cell: Parts) -> tuple[Parts, Parts]:
    enter, forget, new, leave = (_plus(state, a, b) for a, b in zip(x, h, strict=True))
    enter, forget, leave = (state.inhomogeneous(parts, torch.sigmoid) for parts in (enter, forget, leave))
    new = state.inhomogeneous(new, torch.tanh)
    cell = _plus(state, gate(state, forget, cell), gate(state, enter, new))
    shown = state.inhomogeneous(cell, torch.tanh)
    return gate(state, leave, shown), cell


def _gru(state: State, x: list[Parts], h: list[Parts], remembered: Parts, cell: Parts) -> tuple[Parts, Parts]:
    reset, update = (state.inhomogeneous(_plus(state, x[i], h[i]), torch.sigmoid) for i in (0, 1))
    new = state.inhomogeneous(_plus(state, x[2], gate(state, reset, h[2])), torch.tanh)
    keep = state.inhomogeneous(update, lambda v: 1 - v)
    hidden = _plus(state, gate(state, keep, new), gate(state, update, remembered))
    return hidden, hidden


def _plain(state: State, x: list[Parts], h: list[Parts], remembered: Parts, cell: Parts) -> tuple[Parts, Parts]:
    hidden = state.inhomogeneous(_plus(state, x[0], h[0]), torch.tanh)
    return hidden, hidden


def _plain_relu(state: State, x: list[Parts], h: list[Parts], remembered: Parts, cell: Parts) -> tuple[Parts, Parts]:
    hidden = state.homogeneous(_plus(state, x[0], h[0]), torch.relu, curved=True)
    return hidden, hidden


_STEPS = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _plain, "rnn_relu": _plain_relu}

__all__ = ["recurrent"]
