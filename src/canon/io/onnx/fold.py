"""Norms folded into the layers before them, in an ONNX graph, as inference engines want it.

`γ (Wx + b − mean) / √(var + ε) + β` is `(aW) x + β + a (b − mean)` with `a = γ / √(var + ε)`. A norm that does not
stand directly behind a convolution or linear layer stays.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np

_ROW_AXIS: Final = {"Conv": 0, "ConvTranspose": 1, "Gemm": 0}
"""The axis of a layer's weight that holds its output channels."""


def fold_norms(graph: Any) -> int:
    """Fold the norms of a `GraphProto` in place; gives the number of norms that are gone."""
    from onnx import numpy_helper

    tensors = {tensor.name: tensor for tensor in graph.initializer}
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(value.name for value in graph.output)
    makers = {node.output[0]: node for node in graph.node if node.output}
    gone = []
    for norm in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        layer = makers.get(norm.input[0])
        if layer is None or not _foldable(layer, norm, uses, tensors):
            continue
        eps = next((a.f for a in norm.attribute if a.name == "epsilon"), 1e-5)
        gamma, beta, mean, var = (numpy_helper.to_array(tensors[n]).astype(np.float64) for n in norm.input[1:5])
        weight = numpy_helper.to_array(tensors[layer.input[1]])
        offset = numpy_helper.to_array(tensors[layer.input[2]]).astype(np.float64) if len(layer.input) > 2 else 0.0
        factor = gamma / np.sqrt(var + eps)
        shape = [1] * weight.ndim
        shape[_ROW_AXIS[layer.op_type]] = -1
        name = layer.input[2] if len(layer.input) > 2 else f"{layer.input[1].removesuffix('.weight')}.bias"
        scaled = (weight.astype(np.float64) * factor.reshape(shape)).astype(weight.dtype)
        shifted = (beta + factor * (offset - mean)).astype(weight.dtype)
        tensors[layer.input[1]].CopyFrom(numpy_helper.from_array(scaled, layer.input[1]))
        if name not in tensors:
            tensors[name] = graph.initializer.add()
            layer.input.append(name)
        tensors[name].CopyFrom(numpy_helper.from_array(shifted, name))
        layer.output[0] = norm.output[0]
        gone.append(norm)
    for norm in gone:
        graph.node.remove(norm)
    return len(gone)


def _foldable(layer: Any, norm: Any, uses: Counter[str], tensors: dict[str, Any]) -> bool:
    """Whether nothing else reads the layer's result or its tensors, and all of them are constant."""
    if layer.op_type not in _ROW_AXIS or uses[layer.output[0]] != 1 or len(norm.output) > 1:
        return False
    settings = {attribute.name: attribute for attribute in layer.attribute}
    if layer.op_type == "ConvTranspose" and "group" in settings and settings["group"].i != 1:
        return False
    plain = {"transB": 1, "transA": 0, "alpha": 1.0, "beta": 1.0}
    if layer.op_type == "Gemm":
        given = {name: (a.f if name in ("alpha", "beta") else a.i) for name, a in settings.items()}
        if {"transB": 0, "transA": 0, "alpha": 1.0, "beta": 1.0, **given} != plain:
            return False
    own = layer.input[1:]
    return all(name in tensors and uses[name] == 1 for name in own) and all(n in tensors for n in norm.input[1:5])
