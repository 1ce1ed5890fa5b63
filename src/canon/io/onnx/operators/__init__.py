"""One builder per ONNX operator, grouped by what they do."""

from __future__ import annotations

from canon.io.onnx.operators import (
    activations,
    arithmetic,
    attention,
    blocked,
    branches,
    fused,
    indexing,
    layers,
    pooling,
    quantized_layers,
    recurrent,
    reducing,
    resizing,
    shaping,
    sizes,
    sources,
)
from canon.io.onnx.operators.blocked import evened
from canon.io.onnx.operators.quantized import check_whole, moved
from canon.io.onnx.operators.registry import lookup, operator_names
from canon.io.onnx.operators.sizes import TAKE_SIZES, on_sizes

_GROUPS = (
    activations, arithmetic, attention, blocked, branches, fused, indexing, layers, pooling, quantized_layers,
    recurrent, reducing, resizing, shaping, sizes, sources,
)  # fmt: skip

__all__ = ["TAKE_SIZES", "check_whole", "evened", "lookup", "moved", "on_sizes", "operator_names"]
