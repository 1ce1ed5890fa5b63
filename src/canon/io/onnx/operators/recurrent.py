"""Recurrent layers. Their gates stand in another order in ONNX than in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.values import Constant, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

_KINDS: Final[dict[str, tuple[type[nn.Module], tuple[int, ...]]]] = {
    "LSTM": (nn.LSTM, (0, 2, 3, 1)),
    "GRU": (nn.GRU, (1, 0, 2)),
}
"""The layer, and the order in which torch wants the gates of ONNX."""

_DEFAULTS: Final = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"]}


@operator("LSTM", "GRU")
def recurrent(
    b: Builder,
    node: Node,
    x: Value,
    weight: Value,
    recurrence: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    hidden: Value | None = None,
    cell: Value | None = None,
    peepholes: Value | None = None,
) -> Result:
    """A recurrent layer with the usual functions, over whole sequences."""
    both = node.text("direction", "forward") == "bidirectional"
    given = [str(name).lower() for name in node.attributes.get("activations") or []]
    unusual = given not in ([], _DEFAULTS[node.op], _DEFAULTS[node.op] * 2)
    if (
        unusual
        or lengths is not None
        or peepholes is not None
        or node.integer("layout", 0)
        or "clip" in node.attributes
    ):
        raise UnsupportedModelError(f"{node.op} with functions, lengths, peepholes or a layout of its own")
    if node.text("direction", "forward") == "reverse" or not isinstance(weight, Constant):
        raise UnsupportedModelError(f"{node.op} that runs backwards, or with computed weights")
    if node.op == "GRU" and not node.integer("linear_before_reset", 0):
        raise UnsupportedModelError("GRU that resets before the linear map")
    if not isinstance(recurrence, Constant) or not (bias is None or isinstance(bias, Constant)):
        raise UnsupportedModelError(f"{node.op} with computed weights")
    make, order = _KINDS[node.op]
    directions, rows, columns = weight.tensor.shape
    if directions != 1 + both:
        raise ValueError(f"weights for {directions} directions")
    width = rows // len(order)
    tensors = {}
    for index in range(directions):
        end = "l0_reverse" if index else "l0"
        tensors[f"weight_ih_{end}"] = _ordered(weight.tensor[index], order)
        tensors[f"weight_hh_{end}"] = _ordered(recurrence.tensor[index], order)
        if bias is not None:
            tensors[f"bias_ih_{end}"] = _ordered(bias.tensor[index][:rows], order)
            tensors[f"bias_hh_{end}"] = _ordered(bias.tensor[index][rows:], order)
    settings = {"input_size": columns, "hidden_size": width, "bias": bias is not None, "bidirectional": both}
    # States of zeros are what a layer starts with by itself, whatever the size of the batch.
    given_states = [state for state in (hidden, cell) if state is not None]
    zeros = all(isinstance(state, Constant) and not state.tensor.any() for state in given_states)
    start: Any = [] if zeros else given_states
    if len(start) == 1 and node.op == "LSTM":
        raise UnsupportedModelError("LSTM with one of its two states")
    state = () if not start else (tuple(start),) if node.op == "LSTM" else (start[0],)
    whole, last = b.layer_call(node, make, tensors, settings, x, *state)
    apart = b.call(torch.transpose, b.call(torch.unflatten, whole, 2, [directions, width]), 1, 2)
    return [apart, *(last if isinstance(last, list) else [last])]


def _ordered(tensor: Tensor, order: tuple[int, ...]) -> Constant:
    """The gates of a tensor in torch's order."""
    gates = tensor.chunk(len(order))
    return Constant(torch.cat([gates[index] for index in order]))
