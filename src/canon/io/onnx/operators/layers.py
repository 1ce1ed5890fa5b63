"""Linear maps and norms: with constant tensors they become layers, otherwise plain functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn import functional

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.operators.windows import window
from canon.io.onnx.values import Activation, Constant, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

_CONV: Final = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_CONV_TRANSPOSE: Final = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}
_BATCH_NORM: Final = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_INSTANCE_NORM: Final = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
_CONV_FUNCTION: Final = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}
_TRANSPOSE_FUNCTION: Final = {
    3: functional.conv_transpose1d, 4: functional.conv_transpose2d, 5: functional.conv_transpose3d,
}  # fmt: skip


def constants(*values: Value | None) -> bool:
    """Whether these operands can be tensors of a layer."""
    return all(value is None or isinstance(value, Constant) for value in values)


def named(**tensors: Any) -> dict[str, Constant]:
    """The tensors of a layer that are there."""
    return {name: constant for name, constant in tensors.items() if constant is not None}


def _given(bias: Value | None) -> Value | None:
    """A bias, unless it is the zeros that an exporter computes where the layer has none."""
    filled = not isinstance(bias, Constant) or bias.name or bool(bias.tensor.any())
    return bias if filled else None


@operator("Conv")
def conv(b: Builder, node: Node, x: Value, weight: Value, bias: Value | None = None) -> Result:
    """Convolution; padding that is not the same on both sides becomes a step of its own."""
    x, bias = b.activation(x), _given(bias)
    kernel = _shape(weight)
    found = window(node, x, kernel[2:])
    x = found.pad(b, x, 0.0)
    settings: dict[str, Any] = {"stride": found.stride, "padding": found.padding, "dilation": found.dilation}
    settings["groups"] = node.integer("group", 1)
    if not constants(weight, bias):
        return b.call(_CONV_FUNCTION[x.rank], x, weight, bias, fold=False, **settings)
    return b.layer(
        node, _CONV[len(kernel)], named(weight=weight, bias=bias), x,
        in_channels=kernel[1] * settings["groups"], out_channels=kernel[0], kernel_size=kernel[2:],
        bias=bias is not None, **settings,
    )  # fmt: skip


@operator("ConvTranspose")
def conv_transpose(b: Builder, node: Node, x: Value, weight: Value, bias: Value | None = None) -> Result:
    """Transposed convolution."""
    x, bias = b.activation(x), _given(bias)
    kernel = _shape(weight)
    rank = len(kernel) - 2
    if node.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.integers("output_shape"):
        raise UnsupportedModelError("transposed convolution with an output shape instead of padding")
    pads = node.integers("pads") or [0] * (2 * rank)
    extra = node.integers("output_padding") or [0] * rank
    begin, end = pads[:rank], pads[rank:]
    # Asymmetric padding crops the output at the end: fewer entries there are less output padding.
    extra = [e + first - last for e, first, last in zip(extra, begin, end, strict=True)]
    settings: dict[str, Any] = {
        "stride": tuple(node.integers("strides") or [1] * rank),
        "padding": tuple(begin),
        "output_padding": tuple(extra),
        "dilation": tuple(node.integers("dilations") or [1] * rank),
        "groups": node.integer("group", 1),
    }
    if any(e < 0 for e in extra):
        raise UnsupportedModelError("transposed convolution with more padding at the end than at the start")
    if not constants(weight, bias):
        return b.call(_TRANSPOSE_FUNCTION[x.rank], x, weight, bias, fold=False, **settings)
    return b.layer(
        node, _CONV_TRANSPOSE[len(kernel)], named(weight=weight, bias=bias), x,
        in_channels=kernel[0], out_channels=kernel[1] * settings["groups"], kernel_size=kernel[2:],
        bias=bias is not None, **settings,
    )  # fmt: skip


@operator("Gemm")
def gemm(b: Builder, node: Node, x: Value, weight: Value, bias: Value | None = None) -> Result:
    """`alpha · A · B + beta · C`: a linear layer where B and C are constant."""
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    if node.integer("transA", 0):
        x = b.call(torch.transpose, x, 0, 1)
    transposed = bool(node.integer("transB", 0))
    if isinstance(weight, Constant) and constants(bias) and isinstance(x, Activation):
        kernel = weight if transposed else b.transposed(weight)
        if alpha != 1.0:
            kernel = Constant(kernel.tensor * alpha, kernel.name)
        offset = None
        if isinstance(bias, Constant) and beta:
            spread = bias.tensor.reshape(-1) if bias.tensor.numel() == bias.tensor.shape[-1:].numel() else None
            if spread is None or spread.numel() not in (1, kernel.tensor.shape[0]):
                return _gemm(b, x, weight, bias, transposed, alpha, beta)
            whole = spread.numel() == kernel.tensor.shape[0] and beta == 1.0
            if not (whole and bias.rank == 1):
                spread = (spread * beta).expand(kernel.tensor.shape[0]).contiguous()
            offset = Constant(bias.tensor if whole and bias.rank == 1 else spread, bias.name)
        return _linear(b, node, x, kernel, offset)
    return _gemm(b, x, weight, bias, transposed, alpha, beta)


def _gemm(b: Builder, x: Value, y: Value, bias: Any, transposed: bool, alpha: float, beta: float) -> Result:
    if transposed:
        y = b.call(torch.transpose, y, 0, 1)
    result = b.call(torch.matmul, x, y, fold=False)
    if alpha != 1.0:
        result = b.call(torch.mul, result, alpha)
    if bias is None or not beta:
        return result
    return b.call(torch.add, result, bias if beta == 1.0 else b.call(torch.mul, bias, beta))


@operator("MatMul")
def matmul(b: Builder, node: Node, x: Value, y: Value) -> Result:
    """A linear layer without bias where the second operand is a constant matrix."""
    if isinstance(x, Activation) and isinstance(y, Constant) and y.rank == 2:
        return _linear(b, node, x, b.transposed(y), None)
    return b.call(torch.matmul, x, y, fold=False)


def _linear(b: Builder, node: Node, x: Activation, weight: Constant, bias: Constant | None) -> Result:
    rows, columns = weight.tensor.shape
    return b.layer(
        node, nn.Linear, named(weight=weight, bias=bias), x,
        in_features=columns, out_features=rows, bias=bias is not None,
    )  # fmt: skip


@operator("BatchNormalization")
def batch_norm(b: Builder, node: Node, x: Value, weight: Value, bias: Value, mean: Value, var: Value) -> Result:
    """A norm with running statistics."""
    if node.integer("training_mode", 0) or not node.integer("spatial", 1):
        raise UnsupportedModelError("batch normalization in training mode or per position")
    x, eps = b.activation(x), node.real("epsilon", 1e-5)
    if not constants(weight, bias, mean, var):
        return b.call(functional.batch_norm, x, mean, var, weight, bias, False, 0.1, eps)
    tensors = named(weight=weight, bias=bias, running_mean=mean, running_var=var)
    return b.layer(node, _BATCH_NORM[x.rank], tensors, x, num_features=_shape(weight)[0], eps=eps)


@operator("InstanceNormalization")
def instance_norm(b: Builder, node: Node, x: Value, weight: Value, bias: Value) -> Result:
    """Each channel normalised by its own statistics."""
    x, eps = b.activation(x), node.real("epsilon", 1e-5)
    if not constants(weight, bias):
        return b.call(functional.instance_norm, x, None, None, weight, bias, True, 0.1, eps)
    settings = {"num_features": _shape(weight)[0], "eps": eps, "affine": True}
    return b.layer(node, _INSTANCE_NORM[x.rank], named(weight=weight, bias=bias), x, **settings)


@operator("LayerNormalization")
def layer_norm(b: Builder, node: Node, x: Value, weight: Value, bias: Value | None = None) -> Result:
    """Normalised over the last axes."""
    x, eps = b.activation(x), node.real("epsilon", 1e-5)
    axis = node.integer("axis", -1)
    shape = [int(size) for size in x.hints[0].shape[axis:]]
    if not constants(weight, bias) or list(_shape(weight)) != shape:
        spread = [b.call(torch.broadcast_to, t, shape) if t is not None else None for t in (weight, bias)]
        return b.call(functional.layer_norm, x, shape, *spread, eps)
    settings = {"normalized_shape": shape, "eps": eps, "bias": bias is not None}
    return b.layer(node, nn.LayerNorm, named(weight=weight, bias=bias), x, **settings)


@operator("GroupNormalization")
def group_norm(b: Builder, node: Node, x: Value, weight: Value, bias: Value) -> Result:
    """Normalised over groups of channels; before version 21 the scale was given per group."""
    x, eps, groups = b.activation(x), node.real("epsilon", 1e-5), node.integer("num_groups", 1)
    channels = int(x.hints[0].shape[1])
    if not constants(weight, bias):
        raise UnsupportedModelError("group normalization with computed scales")
    if _shape(weight)[0] == groups != channels:
        spread = channels // groups
        weight, bias = (b.call(torch.repeat_interleave, t, spread) for t in (weight, bias))
    settings = {"num_groups": groups, "num_channels": channels, "eps": eps}
    return b.layer(node, nn.GroupNorm, named(weight=weight, bias=bias), x, **settings)


@operator("PRelu")
def prelu(b: Builder, node: Node, x: Value, slope: Value) -> Result:
    """A slope per channel, or one for all."""
    x = b.activation(x)
    if isinstance(slope, Constant):
        shape = slope.tensor.shape
        flat = slope.tensor.numel() == 1
        per_channel = shape[-x.rank + 1 :].numel() == shape[:1].numel() if slope.rank == x.rank - 1 else False
        if slope.rank == x.rank and shape[0] == 1:
            per_channel = shape.numel() == shape[1]
        if flat or per_channel:
            weight = slope if slope.rank == 1 else b.call(torch.reshape, slope, (-1,))
            weight = Constant(weight.tensor, slope.name)
            return b.layer(node, nn.PReLU, {"weight": weight}, x, num_parameters=slope.tensor.numel())
    negative = b.call(torch.mul, b.call(torch.clamp, x, max=0), slope)
    return b.call(torch.add, b.call(functional.relu, x), negative)


@operator("LRN")
def local_response_norm(b: Builder, node: Node, x: Value) -> Result:
    """Normalised over neighbouring channels."""
    size = node.integer("size", 1)
    if not 1 <= size <= 1024:
        raise UnsupportedModelError(f"local response normalization over {size} channels")
    settings = (size, node.real("alpha", 1e-4), node.real("beta", 0.75), node.real("bias", 1.0))
    return b.call(functional.local_response_norm, b.activation(x), *settings)


def _shape(value: Value) -> tuple[int, ...]:
    if isinstance(value, Constant):
        return tuple(value.tensor.shape)
    assert isinstance(value, Activation), "sizes are no weights"
    return tuple(int(size) for size in value.hints[0].shape)
