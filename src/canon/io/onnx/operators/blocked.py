"""Layers whose channels onnxruntime stores in blocks (NCHWc): read as plain ones.

Within a stretch of such layers, channels are filled up with zeros to whole blocks. The filling is left out again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.filling import BY_CHANNEL, channel_counts
from canon.io.onnx.operators.fused import activated
from canon.io.onnx.operators.layers import conv as plain_conv
from canon.io.onnx.operators.pooling import average_pool, global_pool, max_pool
from canon.io.onnx.operators.registry import NCHWC, Result, operator
from canon.io.onnx.operators.shaping import permuted
from canon.io.onnx.order import in_order
from canon.io.onnx.values import Activation, Blocks, Constant, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

_SIZES: Final = (8, 16)
"""How many channels stand together, depending on the machine that wrote the file."""

_CLEAR: Final = 5.0
"""By how much one size must explain the weights better than the other, in units of what chance does."""

_MOST: Final = 24
"""Kernels that are looked at to find it out."""


@operator("ReorderInput", domain=NCHWC)
def reorder_input(b: Builder, node: Node, x: Value) -> Result:
    """Into blocks: the value itself."""
    x = b.activation(x)
    return permuted(b, x, [0, x.rank - 1, *range(1, x.rank - 1)]) if node.integer("channels_last", 0) else x


@operator("ReorderOutput", domain=NCHWC)
def reorder_output(b: Builder, node: Node, x: Value) -> Result:
    """Out of blocks: the value itself, without what fills up the last one."""
    given = b.activation(x)
    result = _with_channels(b, given, node.integer("channels", int(given.hints[0].shape[1])))
    return permuted(b, result, [0, *range(2, given.rank), 1]) if node.integer("channels_last", 0) else result


def _with_channels(b: Builder, x: Any, count: int) -> Any:
    """As many channels as this; more of them are zeros, as they are in the blocks."""
    found = int(x.hints[0].shape[1])
    if found > count:
        return b.call(torch.narrow, x, 1, 0, count)
    if found < count:
        return b.call(functional.pad, x, [0, 0] * (x.rank - 2) + [0, count - found], "constant", 0.0)
    return x


@operator("Conv", domain=NCHWC)
def conv(
    b: Builder, node: Node, x: Value, weight: Value, bias: Value | None = None, other: Value | None = None
) -> Result:
    """A convolution, a sum and an activation."""
    counts, groups = blocks(b).channels, node.integer("group", 1)
    x = b.activation(x)
    kernel, offset = _kernel(b, node, blocks(b).size)
    rows = min(counts.get(node.outputs[0], kernel.shape[0]), kernel.shape[0])
    if groups > 1 and kernel.shape[1] == 1:
        x, groups = _with_channels(b, x, rows), rows
    elif groups == 1:
        kernel = kernel[:, : int(x.hints[0].shape[1])]
    given = replace(node, attributes={**node.attributes, "group": groups})
    bound = None if bias is None else Constant(offset[:rows].contiguous(), getattr(bias, "name", ""))
    result = plain_conv(b, given, x, Constant(kernel[:rows].contiguous(), getattr(weight, "name", "")), bound)
    if other is not None:
        result = b.call(torch.add, result, _with_channels(b, b.activation(other), rows))
    return activated(b, node, result, [float(v) for v in node.attributes.get("activation_params") or []])


def _kernel(b: Builder, node: Node, block: int) -> tuple[Tensor, Tensor]:
    """A layer's kernel in the usual order, and its bias."""
    weight, bias = (b.value(name) if name else None for name in (*node.inputs[1:3], "")[:2])
    if not isinstance(weight, Constant) or not (bias is None or isinstance(bias, Constant)) or weight.rank != 4:
        raise UnsupportedModelError("a convolution in blocks with computed weights")
    kernel = unblocked(weight.tensor, node.integer("group", 1), block)
    return kernel, torch.zeros(kernel.shape[0]) if bias is None else bias.tensor


def evened(b: Builder, node: Node, operands: list[Any]) -> list[Any]:
    """Operands of a sum or product in blocks with as many channels as its result has."""
    count = None if b.blocks is None else b.blocks.channels.get(node.outputs[0])
    if count is None or node.domain == NCHWC:
        return operands
    return [_with_channels(b, v, count) if isinstance(v, Activation) and v.rank > 1 else v for v in operands]


def unblocked(weight: Tensor, groups: int, block: int) -> Tensor:
    """A kernel in the usual order: blocks of rows, and of columns where there are whole blocks of them.

    >>> plain = torch.arange(16 * 8).reshape(16, 8, 1, 1)
    >>> blocks = plain.reshape(2, 8, 1, 8, 1, 1).permute(0, 2, 4, 5, 3, 1).reshape(16, 8, 1, 1)
    >>> torch.equal(unblocked(blocks, 1, 8), plain)
    True
    """
    rows, columns, height, width = weight.shape
    if rows % block:
        raise ValueError(f"{rows} rows are not made of blocks of {block}")
    if columns < block if groups == 1 else columns == 1:
        return weight.reshape(rows // block, columns, height, width, block).permute(0, 4, 1, 2, 3).reshape(weight.shape)
    if columns % block:
        raise ValueError(f"{columns} columns are not made of blocks of {block}")
    apart = weight.reshape(rows // block, columns // block, height, width, block, block)
    return apart.permute(0, 5, 1, 4, 2, 3).reshape(weight.shape)


def blocks(b: Builder) -> Blocks:
    """How the file's channels are stored; it does not say how large blocks are, but its weights do."""
    if b.blocks is None:
        kernels = _kernels(b)
        able = [size for size in _SIZES if all(_possible(kernel, groups, size) for kernel, groups in kernels)]
        able = [size for size in able if all(-(-count // size) * size == rows for count, rows in _leaving(b))]
        if not able:
            raise ValueError("no size of blocks fits all kernels")
        some = [given for given in kernels if given[0][0].numel() > 1][:_MOST]  # rows of one number are in order
        scores = {size: sum(_likelihood(unblocked(k, g, size)) for k, g in some) for size in able}
        best = max(able, key=lambda size: scores[size])
        clear = _CLEAR * math.sqrt(sum(kernel.shape[0] + kernel.shape[1] for kernel, _ in some))
        if any(scores[best] - scores[size] < clear for size in able if size != best):
            raise UnsupportedModelError(
                "the weights are stored in blocks of channels, and nothing in the file says how large these are",
                hint="Save the model with onnxruntime's optimisation level 'extended' instead of 'all'",
            )
        numbers = {name: math.prod(stored.shape) for name, stored in b.stored.items()}
        counts = channel_counts(in_order(b.model.nodes), lambda node: _kernel(b, node, best), numbers)
        b.blocks = Blocks(best, counts)
    return b.blocks


def _kernels(b: Builder) -> list[tuple[Tensor, int]]:
    found = []
    for node in b.model.nodes:
        if node.op == "Conv" and node.domain == NCHWC and len(node.inputs) > 1:
            weight = b.value(node.inputs[1])
            if isinstance(weight, Constant) and weight.rank == 4:
                found.append((weight.tensor, node.integer("group", 1)))
    return found


def _leaving(b: Builder) -> list[tuple[int, int]]:
    """Of layers whose result leaves the blocks: how many channels leave, and how many rows they were filled up to."""
    rows = {}
    for node in b.model.nodes:
        if node.domain == NCHWC and node.op == "Conv" and len(node.inputs) > 1 and node.outputs:
            weight = b.value(node.inputs[1])
            if isinstance(weight, Constant) and weight.rank == 4:
                rows[node.outputs[0]] = int(weight.tensor.shape[0])
        elif node.op in BY_CHANNEL and node.inputs and node.inputs[0] in rows and node.outputs:
            rows[node.outputs[0]] = rows[node.inputs[0]]
    leaving = [node for node in b.model.nodes if node.domain == NCHWC and node.op == "ReorderOutput" and node.inputs]
    counts = [(node.integer("channels", 0), rows.get(node.inputs[0])) for node in leaving]
    return [(count, row) for count, row in counts if count > 0 and row is not None]


def _possible(kernel: Tensor, groups: int, block: int) -> bool:
    rows, columns = kernel.shape[:2]
    narrow = columns < block if groups == 1 else columns == 1
    return rows % block == 0 and (narrow or columns % block == 0)


def _likelihood(kernel: Tensor) -> float:
    """How well rows and columns with a size of their own explain a kernel: mixed up, they are all alike."""
    score = 0.0
    for flat in (kernel.flatten(1), kernel.transpose(0, 1).flatten(1)):
        power = flat.double().square().mean(1)
        alive = power[power > 0]
        if flat.shape[0] > 1 and len(alive):
            score -= 0.5 * flat.shape[1] * float((alive.log() - alive.mean().log()).sum())
    return score


@operator("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", domain=NCHWC)
def pool(b: Builder, node: Node, x: Value) -> Result:
    """A pool, which knows no channels."""
    if node.op.startswith("Global"):
        return global_pool(b, node, x)
    return max_pool(b, node, x) if node.op == "MaxPool" else average_pool(b, node, x)


@operator("Upsample", domain=NCHWC)
def upsample(b: Builder, node: Node, x: Value) -> Result:
    """Every position several times, or interpolated."""
    x = b.activation(x)
    scales = node.integers("scales") or [1] * x.rank
    if node.text("mode", "nearest") != "nearest" or len(scales) != x.rank or scales[:2] != [1, 1]:
        raise UnsupportedModelError("interpolation in blocks")
    assert isinstance(x, Activation), "just made one"
    return b.call(functional.interpolate, x, scale_factor=[float(s) for s in scales[2:]], mode="nearest")
