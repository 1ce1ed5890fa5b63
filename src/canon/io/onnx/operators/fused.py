"""What onnxruntime fuses when it optimises a model, taken apart again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn import functional

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.activations import PLAIN, hard_sigmoid, leaky_relu, swish
from canon.io.onnx.operators.arithmetic import number
from canon.io.onnx.operators.layers import constants, conv, gemm, layer_norm, matmul, named
from canon.io.onnx.operators.registry import MICROSOFT, Result, operator
from canon.io.onnx.operators.shaping import permuted
from canon.io.onnx.values import Activation, Constant, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

_PLAIN: Final = frozenset({"Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSwish"})


def activated(b: Builder, node: Node, x: Any, parameters: list[float]) -> Result:
    """A fused activation, given by name."""
    name = node.text("activation", "")
    alpha, beta = [*parameters, None, None][:2]
    inner = replace(node, op=name, attributes={k: v for k, v in (("alpha", alpha), ("beta", beta)) if v is not None})
    if name in _PLAIN:
        return b.call(PLAIN[name], x)
    if name == "LeakyRelu":
        return leaky_relu(b, inner, x)
    if name == "HardSigmoid":
        return hard_sigmoid(b, inner, x)
    if name == "Clip" and alpha is not None and beta is not None:
        if alpha == 0 and beta in (6.0,):
            return b.call(functional.relu6, x)
        return b.call(functional.relu, x) if alpha == 0 and beta > 3e38 else b.call(torch.clamp, x, alpha, beta)
    if name:
        raise UnsupportedModelError(f"a fused activation '{name[:40]}' with {len(parameters)} parameters")
    return x


def _reals(node: Node, name: str) -> list[float]:
    value = node.attributes.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, (int, float)) for item in value):
        raise ValueError(f"the attribute '{name}' is no list of numbers")
    return [float(item) for item in value]


@operator("FusedConv", domain=MICROSOFT)
def fused_conv(
    b: Builder, node: Node, x: Value, weight: Value, bias: Value | None = None, other: Value | None = None
) -> Result:
    """A convolution, a sum and an activation."""
    result = conv(b, node, x, weight, bias)
    if other is not None:
        result = b.call(torch.add, result, other)
    return activated(b, node, result, _reals(node, "activation_params"))


@operator("FusedGemm", domain=MICROSOFT)
def fused_gemm(b: Builder, node: Node, x: Value, weight: Value, bias: Value | None = None) -> Result:
    """A linear map and an activation."""
    given = (node.attributes.get(f"activation_{name}") for name in ("alpha", "beta", "gamma"))
    parameters = [float(value) for value in given if isinstance(value, (int, float))]
    return activated(b, node, gemm(b, node, x, weight, bias), parameters)


@operator("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(b: Builder, node: Node, x: Value, y: Value) -> Result:
    """A matrix product, with a factor and transposed operands."""
    if node.integer("transBatchA", 0) or node.integer("transBatchB", 0):
        raise UnsupportedModelError("a product of matrices along their first axis")
    alpha = node.real("alpha", 1.0)
    if node.integer("transA", 0):
        x = b.call(torch.transpose, x, -2, -1)
    if node.integer("transB", 0):
        y = b.call(torch.transpose, y, -2, -1)
    if isinstance(y, Constant) and y.rank == 2 and alpha != 1.0:
        return matmul(b, node, x, Constant(y.tensor * alpha, y.name))
    result = matmul(b, node, x, y)
    return result if alpha == 1.0 else b.call(torch.mul, result, alpha)


@operator("Gelu", "BiasGelu", domain=MICROSOFT)
def gelu(b: Builder, node: Node, x: Value, bias: Value | None = None) -> Result:
    """`x · Φ(x)`, of a sum with a bias."""
    return b.call(functional.gelu, _with(b, x, bias), approximate="none")


@operator("FastGelu", domain=MICROSOFT)
def fast_gelu(b: Builder, node: Node, x: Value, bias: Value | None = None) -> Result:
    """The same, by way of tanh."""
    return b.call(functional.gelu, _with(b, x, bias), approximate="tanh")


def _with(b: Builder, x: Value, bias: Value | None) -> Any:
    return x if bias is None else b.call(torch.add, x, number(bias, x))


@operator("QuickGelu", domain=MICROSOFT)
def quick_gelu(b: Builder, node: Node, x: Value) -> Result:
    """`x · sigmoid(1.702 · x)`."""
    return swish(b, replace(node, attributes={"alpha": node.real("alpha", 1.702)}), x)


@operator("SimplifiedLayerNormalization")
@operator("RMSNormalization")
def rms_norm(b: Builder, node: Node, x: Value, weight: Value) -> Result:
    """Divided by the root of the mean square over the last axes."""
    x, eps = b.activation(x), node.real("epsilon", 1e-5)
    shape = [int(size) for size in x.hints[0].shape[node.integer("axis", -1) :]]
    if isinstance(weight, Constant) and list(weight.tensor.shape) == shape:
        return b.layer(node, nn.RMSNorm, named(weight=weight), x, normalized_shape=shape, eps=eps)
    return b.call(functional.rms_norm, x, shape, b.call(torch.broadcast_to, weight, shape), eps)


@operator("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(
    b: Builder, node: Node, x: Value, skip: Value, weight: Value, bias: Value | None = None, offset: Value | None = None
) -> Result:
    """A sum and its layer norm; the sum is the fourth result."""
    total = _with(b, b.call(torch.add, _with(b, x, offset), skip), None)
    plain = replace(node, attributes={"epsilon": node.real("epsilon", 1e-12)})
    return _fourth(node, layer_norm(b, plain, total, weight, bias), total)


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_norm(b: Builder, node: Node, x: Value, skip: Value, weight: Value, offset: Value | None = None) -> Result:
    """A sum and its RMS norm; the sum is the fourth result."""
    total = b.call(torch.add, _with(b, x, offset), skip)
    plain = replace(node, attributes={"epsilon": node.real("epsilon", 1e-12)})
    return _fourth(node, rms_norm(b, plain, total, weight), total)


def _fourth(node: Node, result: Any, total: Any) -> list[Any]:
    if any(node.outputs[1:3]):
        raise UnsupportedModelError("the mean and deviation of a norm are read")
    return [result, None, None, total]


@operator("GroupNorm", domain=MICROSOFT)
def group_norm(b: Builder, node: Node, x: Value, weight: Value, bias: Value) -> Result:
    """A group norm, with channels last unless said otherwise, and maybe SiLU behind it."""
    x, last = b.activation(x), bool(node.integer("channels_last", 1))
    if not constants(weight, bias) or not isinstance(weight, Constant):
        raise UnsupportedModelError("group normalization with computed scales")
    rank = x.rank
    inner = permuted(b, x, [0, rank - 1, *range(1, rank - 1)]) if last else x
    settings = {"num_groups": node.integer("groups", 1), "num_channels": int(weight.tensor.numel())}
    eps = node.real("epsilon", 1e-5)
    result = b.layer(node, nn.GroupNorm, named(weight=weight, bias=bias), inner, eps=eps, **settings)
    if node.integer("activation", 0):
        result = b.call(functional.silu, result)
    return permuted(b, result, [0, *range(2, rank), 1]) if last else result


@operator("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(b: Builder, node: Node, x: Value, bias: Value) -> Result:
    """The softmax of a sum, over the last axis."""
    x = b.activation(x)
    if node.integer("axis", 1) % x.rank != x.rank - 1 or not isinstance(x, Activation):
        raise UnsupportedModelError("a softmax over several axes")
    return b.call(torch.softmax, b.call(torch.add, x, bias), -1)
