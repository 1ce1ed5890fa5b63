"""Whole numbers that stand for real ones: they are read as the real numbers that they stand for.

Weights become floating point again, exactly. An activation that the file rounds to whole numbers stays what it was
before: rounding and saturation are left out, save where saturation at zero is the ReLU that a quantizer took away.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.layers import conv, matmul
from canon.io.onnx.operators.registry import MICROSOFT, Operator, Result, operator
from canon.io.onnx.tensors import dtype_of
from canon.io.onnx.values import Activation, Constant, Measured, Product, Quantized, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

_SUFFIXES: Final = ("_quantized", "_QuantizeLinear", "_DequantizeLinear")
_FAR: Final = 64
"""Activations that are followed back from one that is rounded."""

_FLOORS: Final = {
    functional.relu: 0.0, functional.relu6: 0.0, torch.abs: 0.0, torch.square: 0.0, torch.sigmoid: 0.0,
    torch.softmax: 0.0, functional.hardsigmoid: 0.0, functional.silu: -0.2785, functional.hardswish: -0.375,
    functional.gelu: -0.17, functional.mish: -0.3089, torch.tanh: -1.0,
}  # fmt: skip
"""What functions never go below."""

_SHARES: Final = frozenset({torch.sigmoid, torch.softmax, functional.hardsigmoid})
"""Functions between zero and one: what is multiplied with them does not go further below zero."""

_KEEP_FLOOR: Final = frozenset(
    {
        functional.max_pool1d, functional.max_pool2d, functional.max_pool3d, functional.avg_pool1d,
        functional.avg_pool2d, functional.avg_pool3d, functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d,
        functional.adaptive_avg_pool3d, functional.adaptive_max_pool2d, torch.flatten, torch.reshape, torch.permute,
        torch.squeeze, torch.unsqueeze, torch.mean,
    }
)  # fmt: skip
"""Functions that give nothing below the lowest of what they are given, or zero."""


def dequantized(b: Builder, stored: Value, scale: Value, zero: Value | None, axis: int, block: int = 0) -> Constant:
    """A constant as the real numbers that it stands for; scales are one number, or one per entry of an axis."""
    if not isinstance(stored, Constant) or not isinstance(scale, Constant) or isinstance(zero, Activation):
        raise UnsupportedModelError("a quantized tensor whose numbers or scales are computed")
    tensor = stored.tensor
    precision(b, tensor.dtype)
    steps = _along(scale.tensor, tensor, axis, block)
    wide = tensor.to(torch.float64)
    if isinstance(zero, Constant):
        wide = wide - _along(zero.tensor.to(torch.float64), tensor, axis, block)
    b.spend(tensor.numel())
    return Constant((wide * steps.to(torch.float64)).to(b.wide(scale.tensor.dtype)), _plain(stored.name))


def _along(values: Tensor, like: Tensor, axis: int, block: int) -> Tensor:
    """Scales or zero points in a shape that broadcasts."""
    if values.numel() == 1:
        return values.reshape(())
    axis %= like.ndim
    if block:
        return values.repeat_interleave(block, axis).narrow(axis, 0, like.shape[axis])
    if values.numel() != like.shape[axis]:
        raise ValueError(f"{values.numel()} scales for an axis of size {like.shape[axis]}")
    return values.reshape([-1 if i == axis else 1 for i in range(like.ndim)])


def _plain(name: str) -> str:
    """What a tensor was called before it was quantized."""
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def precision(b: Builder, dtype: torch.dtype) -> None:
    """Note that weights of this type were made real; biases are stored finer, and do not count."""
    if dtype.itemsize <= 2:
        b.precision = str(dtype).removeprefix("torch.")
        b.note(
            f"dequantized: the weights are stored as {b.precision}, and can be compared at that precision alone; "
            "rounding and saturation of activations were left out"
        )


def as_real(b: Builder, value: Value, scale: Value, zero: Value | None, axis: int = 0) -> Value:
    """An operand of a quantized operator as real numbers."""
    if not isinstance(value, Quantized):
        if isinstance(value, Constant):
            return dequantized(b, value, scale, zero, axis)
        steps = b.call("to", b.activation(value), torch.float32)
        if zero is not None:
            steps = b.call(torch.sub, steps, b.call("to", zero, torch.float32))
        return b.call(torch.mul, steps, scale)  # type: ignore[no-any-return]
    if not _same(value.scale, scale) or not _same(value.zero, zero):
        raise UnsupportedModelError("a quantized value is read with another scale than it was written with")
    return value.real


def _same(written: Value | None, read: Value | None) -> bool:
    if isinstance(written, Measured) and isinstance(read, Measured):
        return written.source is read.source and written.factor is None and read.factor is None
    if isinstance(written, Constant) and isinstance(read, Constant):
        return torch.equal(written.tensor.reshape(-1), read.tensor.reshape(-1))
    known = written if read is None else read
    return written is read or (isinstance(known, Constant) and not known.tensor.any())


def quantized(b: Builder, x: Value, scale: Value, zero: Value | None, dtype: torch.dtype | None = None) -> Quantized:
    """A real value that the file rounds to whole numbers."""
    real = b.activation(x)
    if not isinstance(scale, Constant) or not (zero is None or isinstance(zero, Constant)):
        raise UnsupportedModelError("a scale that is computed")
    kind = zero.tensor.dtype if isinstance(zero, Constant) else dtype or torch.uint8
    if kind.is_floating_point:
        raise UnsupportedModelError(f"values that are rounded to {kind}")
    lowest, highest = torch.iinfo(kind).min, torch.iinfo(kind).max
    zeros = torch.zeros(1) if zero is None else zero.tensor
    # What is never below half a step rounds to zero: saturation does nothing then.
    steps = float(scale.tensor.min())
    if bool((zeros == lowest).all()) and real.node.op != "placeholder" and _floor(real, {}) < -steps / 2:
        top = (highest - lowest) * scale.tensor.double()
        six = bool(((top - 6).abs() < 1e-3).all())
        real = b.call(functional.relu6 if six else functional.relu, real)
    return Quantized(real, scale, zero)


def _floor(x: Any, known: dict[Any, float]) -> float:
    """What an activation never goes below, as far as the functions that made it tell."""
    node = x.node if isinstance(x, Activation) else x
    if isinstance(node, (int, float)):
        return float(node)
    if not isinstance(node, torch.fx.Node):
        return -math.inf
    if node not in known:
        known[node] = _FLOORS.get(node.target, -math.inf)  # type: ignore[arg-type]
        if len(known) < _FAR:
            known[node] = max(known[node], _floor_of_result(node, known))
    return known[node]


def _floor_of_result(node: torch.fx.Node, known: dict[Any, float]) -> float:
    """The same, from what the operands never go below."""
    if node.target in _KEEP_FLOOR:
        return min(_floor(node.args[0], known), 0.0)
    if node.target is torch.cat and isinstance(node.args[0], (list, tuple)):
        return min(_floor(item, known) for item in node.args[0])
    if node.target is torch.add:
        return sum(_floor(item, known) for item in node.args[:2])
    if node.target is torch.mul:
        shares = [isinstance(item, torch.fx.Node) and item.target in _SHARES for item in node.args[:2]]
        floors = [_floor(item, known) for item in node.args[:2]]
        if min(floors) >= 0:
            return 0.0
        if any(shares):
            return min(floors)
    return -math.inf


@operator("QuantizeLinear")
@operator("QuantizeLinear", domain=MICROSOFT)
def quantize(b: Builder, node: Node, x: Value, scale: Value, zero: Value | None = None) -> Result:
    """Rounded to whole numbers, which is left out."""
    if node.integer("block_size", 0):
        raise UnsupportedModelError("values that are rounded in blocks")
    number = node.integer("output_dtype", 0)
    dtype = dtype_of(number, node.where) if number else None
    if not isinstance(x, Constant):
        return quantized(b, x, scale, zero, dtype)
    if not isinstance(scale, Constant) or not (zero is None or isinstance(zero, Constant)):
        raise UnsupportedModelError("a scale that is computed")
    kind = zero.tensor.dtype if isinstance(zero, Constant) else dtype or torch.uint8
    b.spend(x.tensor.numel())
    axis = node.integer("axis", 1) if x.rank else 0
    steps = torch.round(x.tensor / _along(scale.tensor, x.tensor, axis, 0))
    if isinstance(zero, Constant):
        steps = steps + _along(zero.tensor.to(steps.dtype), x.tensor, axis, 0)
    return Constant(steps.clamp(torch.iinfo(kind).min, torch.iinfo(kind).max).to(kind), x.name)


@operator("DequantizeLinear")
@operator("DequantizeLinear", domain=MICROSOFT)
def dequantize(b: Builder, node: Node, x: Value, scale: Value, zero: Value | None = None) -> Result:
    """Whole numbers as the real ones that they stand for."""
    axis = node.integer("axis", 1)
    if isinstance(x, Constant):
        return dequantized(b, x, scale, zero, axis if x.rank else 0, node.integer("block_size", 0))
    return as_real(b, x, scale, zero, axis)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(b: Builder, node: Node, x: Value) -> Result:
    """Rounded with a scale that is measured while the model runs."""
    x = b.activation(x)
    scale, zero = Measured(x), Measured(x)
    return [Quantized(x, scale, zero), scale, zero]


@operator("ConvInteger")
def conv_integer(
    b: Builder, node: Node, x: Value, weight: Value, zero: Value | None = None, offset: Value | None = None
) -> Result:
    """A convolution of whole numbers, which waits for its scale."""
    x, plain = _whole(x, zero), _centred(b, weight, offset, 0)

    def make(factor: Tensor) -> Activation:
        scaled = plain.tensor * _rows(factor.reshape(-1), plain.tensor)
        result: Activation = conv(b, node, x.real, Constant(scaled, plain.name))
        return result

    return Product(x, make)


@operator("MatMulInteger")
def matmul_integer(
    b: Builder, node: Node, x: Value, weight: Value, zero: Value | None = None, offset: Value | None = None
) -> Result:
    """A matrix product of whole numbers, which waits for its scale."""
    x, plain = _whole(x, zero), _centred(b, weight, offset, -1)

    def make(factor: Tensor) -> Activation:
        result: Activation = matmul(b, node, x.real, Constant(plain.tensor * factor.reshape(-1), plain.name))
        return result

    return Product(x, make)


def _rows(factor: Tensor, like: Tensor) -> Tensor:
    return factor if factor.numel() == 1 else factor.reshape(-1, *[1] * (like.ndim - 1))


def _whole(x: Value, zero: Value | None) -> Quantized:
    if not isinstance(x, Quantized) or not _same(x.zero, zero):
        raise UnsupportedModelError("a product of whole numbers that no quantization made")
    return x


def _centred(b: Builder, weight: Value, offset: Value | None, axis: int) -> Constant:
    return dequantized(b, weight, Constant(torch.ones(())), offset, axis)


_MOVES: Final = frozenset(
    "MaxPool Reshape Transpose Flatten Squeeze Unsqueeze Slice Identity Concat Split Expand Gather Pad Tile "
    "SpaceToDepth DepthToSpace".split()
)
"""Operators that move whole numbers and do not compute with them."""

_COUNTS: Final = frozenset("DequantizeLinear QLinearConv QLinearMatMul ConvInteger MatMulInteger".split())
"""Operators that know what whole numbers count in."""


def check_whole(node: Node, operands: list[Any]) -> None:
    """Refuse scales that are measured, and products that wait for theirs, where nothing knows what to do with them."""
    known = {"Mul", "Cast", *_COUNTS}
    if not node.domain and node.op not in known and any(isinstance(v, (Measured, Product)) for v in operands):
        raise UnsupportedModelError("a scale that is measured while the model runs is computed with")


def moved(b: Builder, node: Node, operands: list[Any], apply: Operator) -> Result:
    """An operator on whole numbers: those that know scales, and those that only move numbers."""
    given = [value for value in operands if isinstance(value, Quantized)]
    first = given[0]
    if node.domain or node.op in _COUNTS:
        return apply(b, node, *operands)
    if node.op not in _MOVES:
        raise UnsupportedModelError("whole numbers of a quantized model are computed with as such")
    if not all(_same(first.scale, other.scale) and _same(first.zero, other.zero) for other in given):
        raise UnsupportedModelError("whole numbers of different scales are put together")
    if node.op == "Pad" and node.text("mode", "constant") == "constant":
        value = operands[2] if len(operands) > 2 else None
        if not _same(first.zero, value):
            raise UnsupportedModelError("whole numbers are padded with what does not stand for zero")
        operands = [*operands[:2], *([None] if len(operands) > 2 else []), *operands[3:]]
    if node.op == "Concat" and len(given) < len(operands):
        raise UnsupportedModelError("whole numbers are put together with constants")
    result = apply(b, node, *(value.real if isinstance(value, Quantized) else value for value in operands))
    results = result if isinstance(result, list) else [result]
    return [Quantized(item, first.scale, first.zero) for item in results]
