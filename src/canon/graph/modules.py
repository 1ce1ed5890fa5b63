"""Layers as operations: every torch.nn layer that the rules know, called by the name of its function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

Operands = tuple[str, list[Any], dict[str, Any]]
"""An operation's name, its operands after the input, and its keywords. Tensors are given by attribute name."""

ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.Identity: "identity", nn.Dropout: "identity", nn.Dropout1d: "identity", nn.Dropout2d: "identity",
    nn.Dropout3d: "identity", nn.AlphaDropout: "identity", nn.FeatureAlphaDropout: "identity",
    nn.ReLU: "relu", nn.LeakyReLU: "leaky_relu", nn.RReLU: "rrelu", nn.CELU: "celu", nn.ELU: "elu", nn.SELU: "selu",
    nn.GELU: "gelu", nn.Hardshrink: "hardshrink", nn.Hardsigmoid: "hardsigmoid", nn.Hardswish: "hardswish",
    nn.Hardtanh: "hardtanh", nn.LogSigmoid: "logsigmoid", nn.Mish: "mish", nn.ReLU6: "relu6", nn.Sigmoid: "sigmoid",
    nn.SiLU: "silu", nn.Softplus: "softplus", nn.Softshrink: "softshrink", nn.Softsign: "softsign", nn.Tanh: "tanh",
    nn.Tanhshrink: "tanhshrink", nn.Threshold: "threshold", nn.UpsamplingNearest2d: "upsample",
    nn.UpsamplingBilinear2d: "upsample", nn.LocalResponseNorm: "local_response_norm", nn.Flatten: "flatten",
    nn.AdaptiveAvgPool1d: "adaptive_avg_pool1d", nn.AdaptiveAvgPool2d: "adaptive_avg_pool2d",
    nn.AdaptiveAvgPool3d: "adaptive_avg_pool3d", nn.AdaptiveMaxPool1d: "adaptive_max_pool1d",
    nn.AdaptiveMaxPool2d: "adaptive_max_pool2d", nn.AdaptiveMaxPool3d: "adaptive_max_pool3d",
    nn.MaxPool1d: "max_pool1d", nn.MaxPool2d: "max_pool2d", nn.MaxPool3d: "max_pool3d",
}  # fmt: skip
"""Layers whose rule needs nothing but the input."""


def _linear(m: Any) -> Operands:
    return "linear", ["weight", "bias"], {}


def _conv(m: Any) -> Operands:
    name = f"conv{m.weight.ndim - 2}d"
    keywords = {"padding": m.padding, "dilation": m.dilation, "groups": m.groups}
    return name, ["weight", "bias"], {**keywords, "padding_mode": m.padding_mode}


def _conv_transpose(m: Any) -> Operands:
    return f"conv_transpose{m.weight.ndim - 2}d", ["weight", "bias"], {"groups": m.groups}


def _batch_norm(m: Any) -> Operands:
    tensors = ["running_mean", "running_var", "weight", "bias"]
    return "batch_norm", tensors, {"eps": m.eps}


def _instance_norm(m: Any) -> Operands:
    tensors = ["running_mean", "running_var", "weight", "bias"]
    return "instance_norm", tensors, {"eps": m.eps, "use_input_stats": not m.track_running_stats}


def _group_norm(m: Any) -> Operands:
    return "group_norm", ["weight", "bias"], {"num_groups": m.num_groups, "eps": m.eps}


def _layer_norm(m: Any) -> Operands:
    return "layer_norm", ["weight", "bias"], {"normalized_shape": m.normalized_shape}


def _rms_norm(m: Any) -> Operands:
    return "rms_norm", ["weight"], {"normalized_shape": m.normalized_shape}


def _prelu(m: Any) -> Operands:
    return "prelu", ["weight"], {}


def _embedding(m: Any) -> Operands:
    return "embedding", ["weight"], {"max_norm": m.max_norm}


def _recurrent(m: Any) -> Operands:
    names = [name for name in m._flat_weights_names if getattr(m, name, None) is not None]
    settings = {"layers": m.num_layers, "bidirectional": m.bidirectional, "projected": m.proj_size > 0}
    return m.mode.lower(), names, settings


def _softmax(m: Any) -> Operands:
    return "softmax", [], {"dim": m.dim}


def _softmax2d(m: Any) -> Operands:
    return "softmax", [], {"dim": -3}


def _glu(m: Any) -> Operands:
    return "glu", [], {"dim": m.dim}


def _avg_pool(m: Any) -> Operands:
    rank = int(type(m).__name__[-2])
    keywords = {"kernel_size": m.kernel_size, "padding": m.padding}
    keywords["count_include_pad"] = m.count_include_pad
    keywords["divisor_override"] = getattr(m, "divisor_override", None)
    return f"avg_pool{rank}d", [], keywords


def _channel_shuffle(m: Any) -> Operands:
    return "channel_shuffle", [], {"groups": m.groups}


def _upsample(m: Any) -> Operands:
    return "upsample", [], {"mode": m.mode}


def _pad(m: Any) -> Operands:
    mode = {"Ze": "constant", "Co": "constant", "Re": "reflect", "Ci": "circular"}
    name = type(m).__name__[:2]
    return "pad", [], {"pad": m.padding, "mode": mode[name], "value": getattr(m, "value", 0)}


ADAPTERS: dict[type[nn.Module], Callable[[Any], Operands]] = {
    nn.Linear: _linear, nn.Embedding: _embedding, nn.Conv1d: _conv, nn.Conv2d: _conv, nn.Conv3d: _conv,
    nn.ConvTranspose1d: _conv_transpose, nn.ConvTranspose2d: _conv_transpose, nn.ConvTranspose3d: _conv_transpose,
    nn.BatchNorm1d: _batch_norm, nn.BatchNorm2d: _batch_norm, nn.BatchNorm3d: _batch_norm,
    nn.SyncBatchNorm: _batch_norm, nn.InstanceNorm1d: _instance_norm, nn.InstanceNorm2d: _instance_norm,
    nn.InstanceNorm3d: _instance_norm, nn.GroupNorm: _group_norm, nn.PReLU: _prelu, nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.LSTM: _recurrent, nn.GRU: _recurrent, nn.RNN: _recurrent,
    nn.Softmax: _softmax, nn.LogSoftmax: _softmax, nn.Softmin: _softmax, nn.Softmax2d: _softmax2d, nn.GLU: _glu,
    nn.AvgPool1d: _avg_pool, nn.AvgPool2d: _avg_pool, nn.AvgPool3d: _avg_pool,
    nn.Upsample: _upsample, nn.ChannelShuffle: _channel_shuffle,
    nn.ZeroPad1d: _pad, nn.ZeroPad2d: _pad, nn.ZeroPad3d: _pad, nn.ConstantPad1d: _pad, nn.ConstantPad2d: _pad,
    nn.ConstantPad3d: _pad, nn.ReflectionPad1d: _pad, nn.ReflectionPad2d: _pad, nn.ReflectionPad3d: _pad,
    nn.ReplicationPad1d: _pad, nn.ReplicationPad2d: _pad, nn.ReplicationPad3d: _pad,
    nn.CircularPad1d: _pad, nn.CircularPad2d: _pad, nn.CircularPad3d: _pad,
}  # fmt: skip
"""Layers whose rule needs tensors or settings."""

RESIZABLE = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.GroupNorm,
)  # fmt: skip
"""Layers that keep their sizes in attributes, which a rewrite updates."""


SHAPE_KEEPING = frozenset(
    module for module, name in ACTIVATIONS.items() if "pool" not in name and name not in ("upsample", "flatten")
) | {nn.BatchNorm2d, nn.BatchNorm3d, nn.BatchNorm1d, nn.SyncBatchNorm, nn.LayerNorm, nn.RMSNorm}
"""Layers whose output has the shape of their input."""


def hooked(module: nn.Module) -> bool:
    """Whether a hook may change what a layer is given or gives."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def operands_of(module: nn.Module) -> Operands | None:
    """How to call this layer's rule, or None when the layer is unknown or a hook may change what it does."""
    if hooked(module):
        return None
    adapter = ADAPTERS.get(type(module))
    if adapter is not None:
        return adapter(module)
    name = ACTIVATIONS.get(type(module))
    return None if name is None else (name, [], {})
