"""Operators that take whole numbers with their scales and give such: convolutions, products, sums and pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.activations import softmax
from canon.io.onnx.operators.arithmetic import add, mul, with_bias
from canon.io.onnx.operators.layers import conv, gemm, matmul
from canon.io.onnx.operators.pooling import average_pool, global_pool, max_pool
from canon.io.onnx.operators.quantized import as_real, dequantized, precision, quantized
from canon.io.onnx.operators.recurrent import recurrent
from canon.io.onnx.operators.reducing import reduce
from canon.io.onnx.operators.registry import MICROSOFT, Result, operator
from canon.io.onnx.operators.shaping import concat, permuted
from canon.io.onnx.values import Constant, Quantized, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder


def _bias(b: Builder, bias: Value | None, *scales: Value) -> Constant | None:
    """A bias of whole numbers, which count in the product of the scales."""
    if bias is None:
        return None
    if not all(isinstance(scale, Constant) for scale in scales):
        raise UnsupportedModelError("a scale that is computed")
    steps = torch.ones(())
    for scale in scales:
        assert isinstance(scale, Constant), "checked above"
        steps = steps * scale.tensor.reshape(-1).double()
    return dequantized(b, bias, Constant(steps.float().reshape(-1)), None, 0)


def _last(b: Builder, x: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function of channels that come second to a value whose channels come last."""
    rank = b.activation(x).rank
    result = function(permuted(b, x, [0, rank - 1, *range(1, rank - 1)]))
    return permuted(b, result, [0, *range(2, rank), 1])


@operator("QLinearConv")
@operator("QLinearConv", domain=MICROSOFT)
def quantized_conv(
    b: Builder, node: Node, x: Value, x_scale: Value, x_zero: Value, weight: Value, w_scale: Value, w_zero: Value,
    y_scale: Value, y_zero: Value, bias: Value | None = None,
) -> Result:  # fmt: skip
    """A convolution."""
    kernel = dequantized(b, weight, w_scale, w_zero, 0)
    offset = _bias(b, bias, x_scale, w_scale)
    real = as_real(b, x, x_scale, x_zero)
    if node.integer("channels_last", 0):
        result = _last(b, real, lambda value: conv(b, node, value, kernel, offset))
    else:
        result = conv(b, node, real, kernel, offset)
    return quantized(b, result, y_scale, y_zero)


@operator("QLinearMatMul")
def quantized_matmul(
    b: Builder, node: Node, x: Value, x_scale: Value, x_zero: Value, y: Value, w_scale: Value, w_zero: Value,
    y_scale: Value, y_zero: Value,
) -> Result:  # fmt: skip
    """A matrix product."""
    result = matmul(b, node, as_real(b, x, x_scale, x_zero), as_real(b, y, w_scale, w_zero, -1))
    return quantized(b, result, y_scale, y_zero)


@operator("QGemm", domain=MICROSOFT)
def quantized_gemm(
    b: Builder, node: Node, x: Value, x_scale: Value, x_zero: Value, weight: Value, w_scale: Value, w_zero: Value,
    bias: Value | None = None, y_scale: Value | None = None, y_zero: Value | None = None,
) -> Result:  # fmt: skip
    """A linear map; its result is real where no scale is given for it."""
    alpha = Constant(torch.tensor(node.real("alpha", 1.0)))
    kernel = as_real(b, weight, w_scale, w_zero, 0 if node.integer("transB", 0) else 1)
    result = gemm(b, node, as_real(b, x, x_scale, x_zero), kernel, _bias(b, bias, x_scale, w_scale, alpha))
    return result if y_scale is None else quantized(b, result, y_scale, y_zero)


@operator("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_matmul(
    b: Builder, node: Node, x: Value, weight: Value, scale: Value, zero: Value | None = None, bias: Value | None = None
) -> Result:
    """A matrix product whose first operand is rounded while the model runs."""
    result = matmul(b, node, x, dequantized(b, weight, scale, zero, -1))
    return result if bias is None else with_bias(b, result, bias)


@operator("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_to_real(
    b: Builder, node: Node, x: Value, weight: Value, x_scale: Value, w_scale: Value, x_zero: Value | None = None,
    w_zero: Value | None = None, bias: Value | None = None,
) -> Result:  # fmt: skip
    """A matrix product of whole numbers, with its result real."""
    result = matmul(b, node, as_real(b, x, x_scale, x_zero), dequantized(b, weight, w_scale, w_zero, -1))
    return result if bias is None else with_bias(b, result, bias)


@operator("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def quantized_binary(
    b: Builder, node: Node, x: Value, x_scale: Value, x_zero: Value, y: Value, w_scale: Value, w_zero: Value,
    y_scale: Value, y_zero: Value | None = None,
) -> Result:  # fmt: skip
    """A sum or product."""
    first, second = as_real(b, x, x_scale, x_zero), as_real(b, y, w_scale, w_zero)
    result = add(b, node, first, second) if node.op == "QLinearAdd" else mul(b, node, first, second)
    return quantized(b, result, y_scale, y_zero)


_UNARY: Final[dict[str, Callable[..., Any]]] = {
    "QLinearSigmoid": lambda b, node, x: b.call(torch.sigmoid, x),
    "QLinearLeakyRelu": lambda b, node, x: b.call(functional.leaky_relu, x, node.real("alpha", 0.01)),
    "QLinearSoftmax": softmax,
    "QLinearGlobalAveragePool": lambda b, node, x: global_pool(b, replace(node, op="GlobalAveragePool"), x),
    "QLinearAveragePool": average_pool,
}


@operator(*_UNARY, domain=MICROSOFT)
def quantized_unary(
    b: Builder, node: Node, x: Value, x_scale: Value, x_zero: Value, y_scale: Value, y_zero: Value | None = None
) -> Result:
    """A function of one activation."""
    function, real = _UNARY[node.op], as_real(b, x, x_scale, x_zero)
    if node.op == "QLinearSoftmax" and node.integer("opset", 13) < 13:
        raise UnsupportedModelError("a softmax over several axes, on whole numbers")
    if node.integer("channels_last", 0):
        result = _last(b, real, lambda value: function(b, node, value))
    else:
        result = function(b, node, real)
    return quantized(b, result, y_scale, y_zero)


@operator("QLinearReduceMean", domain=MICROSOFT)
def quantized_mean(
    b: Builder, node: Node, x: Value, x_scale: Value, x_zero: Value, y_scale: Value, y_zero: Value | None = None
) -> Result:
    """A mean over axes."""
    result = reduce(b, replace(node, op="ReduceMean"), as_real(b, x, x_scale, x_zero))
    return quantized(b, result, y_scale, y_zero)


@operator("QLinearConcat", domain=MICROSOFT)
def quantized_concat(b: Builder, node: Node, y_scale: Value, y_zero: Value, *operands: Value) -> Result:
    """Side by side along an axis."""
    triples = [operands[start : start + 3] for start in range(0, len(operands), 3)]
    result = concat(b, node, *(as_real(b, value, scale, zero) for value, scale, zero in triples))
    return quantized(b, result, y_scale, y_zero)


@operator("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_lstm(
    b: Builder, node: Node, x: Value, weight: Value, recurrence: Value, bias: Value | None, lengths: Value | None,
    hidden: Value | None, cell: Value | None, peepholes: Value | None, w_scale: Value, w_zero: Value, r_scale: Value,
    r_zero: Value,
) -> Result:  # fmt: skip
    """A recurrent layer; its matrices stand transposed, with scales per direction or per row."""
    tensors = [_matrices(b, weight, w_scale, w_zero), _matrices(b, recurrence, r_scale, r_zero)]
    return recurrent(b, replace(node, op="LSTM"), x, *tensors, bias, lengths, hidden, cell, peepholes)


def _matrices(b: Builder, stored: Value, scale: Value, zero: Value) -> Constant:
    if not isinstance(stored, Constant) or not isinstance(scale, Constant) or not isinstance(zero, Constant):
        raise UnsupportedModelError("a recurrent layer with computed weights")
    precision(b, stored.tensor.dtype)
    shape = (stored.tensor.shape[0], 1, -1)
    real = (stored.tensor.double() - zero.tensor.reshape(shape).double()) * scale.tensor.reshape(shape).double()
    return Constant(real.float().transpose(1, 2).contiguous(), stored.name)


@operator("NhwcMaxPool", domain=MICROSOFT)
def last_max_pool(b: Builder, node: Node, x: Value) -> Result:
    """The largest value of every window of a value whose channels come last."""
    if isinstance(x, Quantized):
        return Quantized(_last(b, x.real, lambda value: max_pool(b, node, value)), x.scale, x.zero)
    return _last(b, x, lambda value: max_pool(b, node, value))
