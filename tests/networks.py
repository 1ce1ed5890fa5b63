"""Small networks, each built around one thing that a trace must get right, with what it must find there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """Layers by name and the function that uses them."""

    def __init__(self, function: Callable[[Any, Tensor], Any], **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


@dataclass(frozen=True)
class Case:
    """A network and what its trace must find."""

    name: str
    build: Callable[[], nn.Module]
    free: tuple[str, ...]
    """Names of the free spaces."""

    pins: Mapping[str, str] = field(default_factory=dict)
    """By space, words of the reason; the model's output needs no mention."""

    shape: tuple[int, ...] = (2, 3, 8, 8)

    def example(self) -> Tensor:
        """A fixed random input."""
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def conv(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> nn.Conv2d:
    """A convolution that keeps the size."""
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, **options)


def head(net: Any, x: Tensor) -> Tensor:
    """Mean over positions, then `net.fc`."""
    result: Tensor = net.fc(x.mean((2, 3)))
    return result


def two_convs(between: Callable[[Any, Tensor], Tensor], width: int = 6, **layers: Any) -> nn.Module:
    """`a`, something on its channels, `b`, and a head."""
    return Net(
        lambda net, x: head(net, F.relu(net.b(between(net, net.a(x))))),
        a=conv(3, width), b=conv(width, 5), fc=nn.Linear(5, 4), **layers,
    )  # fmt: skip


def elementwise(name: str, function: Callable[[Tensor], Tensor]) -> Case:
    """A case whose one point of interest is a function of an activation."""
    return Case(name, lambda: two_convs(lambda net, x: function(x)), ("a", "b"))


def layer(name: str, make: Callable[[], nn.Module]) -> Case:
    """A case whose one point of interest is a layer on 6 channels."""
    return Case(name, lambda: two_convs(lambda net, x: net.layer(x), layer=make()), ("a", "b"))


def pinned(name: str, reason: str, between: Callable[[Any, Tensor], Tensor], **layers: Any) -> Case:
    """A case where `a` must be pinned by what stands between `a` and `b`."""
    return Case(name, lambda: two_convs(between, **layers), ("b",), {"a": reason})


def _filled_up(net: Any, x: Tensor) -> Tensor:
    return head(net, F.relu(net.b(x) + torch.cat([x, torch.zeros_like(x)], 1)))


ACTIVATIONS = tuple(
    layer(make.__name__, make)
    for make in (
        nn.Identity, nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.ReLU, nn.LeakyReLU, nn.RReLU,
        nn.CELU, nn.ELU, nn.SELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LogSigmoid,
        nn.Mish, nn.ReLU6, nn.Sigmoid, nn.SiLU, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink,
        nn.PReLU,
    )
)  # fmt: skip

LAYERS = (
    layer("inplace relu", lambda: nn.ReLU(inplace=True)),
    layer("threshold", lambda: nn.Threshold(0.1, 20)),
    layer("prelu per channel", lambda: nn.PReLU(6)),
    layer("softmax over positions", lambda: nn.Softmax(dim=-1)),
    layer("softmin over positions", lambda: nn.Softmin(dim=2)),
    layer("batch norm", lambda: nn.BatchNorm2d(6)),
    layer("batch norm without affine", lambda: nn.BatchNorm2d(6, affine=False)),
    layer("instance norm", lambda: nn.InstanceNorm2d(6, affine=True)),
    layer("instance norm, running", lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True)),
    layer("group norm, one channel each", lambda: nn.GroupNorm(6, 6)),
    layer("max pool", lambda: nn.MaxPool2d(3, 2, 1)),
    layer("avg pool with padding", lambda: nn.AvgPool2d(3, 2, 1)),
    layer("avg pool, padding not counted", lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    layer("adaptive max pool", lambda: nn.AdaptiveMaxPool2d(3)),
    layer("adaptive avg pool", lambda: nn.AdaptiveAvgPool2d((2, 3))),
    layer("upsample", lambda: nn.Upsample(scale_factor=2, mode="bilinear")),
    layer("zero pad", lambda: nn.ZeroPad2d(1)),
    layer("constant pad", lambda: nn.ConstantPad2d(1, 0.7)),
    layer("reflection pad", lambda: nn.ReflectionPad2d(2)),
    layer("replication pad", lambda: nn.ReplicationPad2d(1)),
    layer("circular pad", lambda: nn.CircularPad2d(1)),
    layer("depthwise", lambda: conv(6, 6, groups=6)),
    layer("depthwise without bias", lambda: conv(6, 6, groups=6, bias=False)),
    layer("depthwise transposed", lambda: nn.ConvTranspose2d(6, 6, 2, 2, groups=6)),
    layer("depthwise, circular", lambda: conv(6, 6, groups=6, padding_mode="circular")),
)

FUNCTIONS = (
    elementwise("functional relu", F.relu),
    elementwise("torch relu", torch.relu),
    elementwise("method relu", lambda x: x.relu()),
    elementwise("functional relu in place", lambda x: F.relu(x, True)),
    elementwise("functional silu", F.silu),
    elementwise("abs and neg", lambda x: -x.abs()),
    elementwise("square", lambda x: x**2),
    elementwise("clamp", lambda x: x.clamp(-0.5, 2.0)),
    elementwise("negative number, then relu", lambda x: F.relu(-2 * x)),
    elementwise("division by a number", lambda x: x / 3),
    elementwise("number over activation", lambda x: 1 / (x.abs() + 1)),
    elementwise("number minus activation", lambda x: 1 - x),
    elementwise("number plus activation, with alpha", lambda x: torch.add(x, 3, alpha=2)),
    elementwise("square by itself", lambda x: x * x),
    elementwise("gate of itself", lambda x: x * torch.sigmoid(x)),
    elementwise("gate by another point", lambda x: F.relu(x) * x),
    elementwise("sum with itself", lambda x: x + F.relu(x)),
    elementwise("difference with itself", lambda x: F.relu(x) - x.abs()),
    elementwise("choice by its sign", lambda x: torch.where(x > 0.1, x * x, torch.expm1(x))),
    elementwise("choice of a number", lambda x: torch.where(x.tanh() <= 0.3, x, 0.5)),
    elementwise("choice by place", lambda x: torch.where(torch.eye(8, dtype=torch.bool), x, F.relu(x))),
    elementwise("masked", lambda x: x.masked_fill(x > 1, 2.0)),
    elementwise("larger of two", lambda x: torch.maximum(x, 0.2 - x)),
    elementwise("smaller of two", lambda x: torch.min(x * x, F.relu(x))),
    elementwise("no larger than another number", lambda x: torch.min(x, torch.tensor(0.3, dtype=x.dtype))),
    elementwise("length over positions", lambda x: x * torch.norm(x, p=2, dim=(2, 3), keepdim=True)),
    elementwise("amax gate", lambda x: x * x.amax((2, 3), keepdim=True)),
    elementwise("sum over positions", lambda x: x + x.sum((2, 3), keepdim=True)),
    elementwise("mean over the batch", lambda x: x + x.mean(0, keepdim=True)),
    elementwise("interpolate", lambda x: F.interpolate(x, scale_factor=2.0)),
    elementwise("interpolate to the size of itself", lambda x: F.interpolate(x, size=x.shape[2:], mode="bicubic")),
    Case(
        "a shortcut filled up with zeros",
        lambda: Net(lambda net, x: _filled_up(net, F.relu(net.a(x))), a=conv(3, 6), b=conv(6, 12), fc=nn.Linear(12, 4)),
        ("a",),
    ),
    elementwise("functional pad", lambda x: F.pad(x, (1, 0, 2, 1))),
    elementwise("functional pad with a number", lambda x: F.pad(x, (1, 0), value=1.5)),
    elementwise("functional pools", lambda x: F.max_pool2d(F.avg_pool2d(x, 3, 1, 1), 2)),
    elementwise("softmax over positions, functional", lambda x: F.softmax(x, dim=3)),
    elementwise("functional instance norm", lambda x: F.instance_norm(x)),
    elementwise("dropout off", lambda x: F.dropout(x, 0.5, training=False)),
    elementwise("permute there and back", lambda x: F.relu(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)),
    elementwise("transpose there and back", lambda x: x.transpose(1, 3).tanh().transpose(3, 1)),
    elementwise("view with computed sizes", lambda x: x.view(x.size(0), x.size(1), -1).view(x.shape)),
    elementwise("unsqueeze, squeeze", lambda x: x.unsqueeze(1).squeeze(1)),
    elementwise("expand", lambda x: x * x.mean((2, 3), keepdim=True).expand(-1, -1, 8, 8).sigmoid()),
    elementwise("expand_as", lambda x: x * x.mean((2, 3), keepdim=True).expand_as(x).sigmoid()),
    elementwise("indexing of positions", lambda x: x[:, :, 1:-1, ::2]),
    elementwise("indexing with an ellipsis", lambda x: x[..., 1:]),
    elementwise("indexing with a new axis", lambda x: x[:, None].squeeze(1)),
    elementwise("chunk of positions", lambda x: x.chunk(2, 3)[0]),
    elementwise("split of positions", lambda x: torch.split(x, [3, 5], 2)[1]),
    elementwise("unbind of positions", lambda x: x.unbind(3)[2].unsqueeze(3)),
    elementwise("cat over positions", lambda x: torch.cat([x, F.relu(x)], 3)),
    elementwise("cat over the batch", lambda x: torch.cat([x, -x], 0)),
    elementwise("stack before the channels", lambda x: torch.stack([x, F.relu(x)], 1).sum(1)),
    elementwise("stack behind the channels", lambda x: torch.stack([x, -F.silu(x)], -1).mean(-1)),
    elementwise("in place after a fan-out", lambda x: F.max_pool2d(x, 3, 1, 1) + x.relu_()),
    elementwise("stale name of a value changed in place", lambda x: x.add_(1.5) + x),
    elementwise("detach and clone", lambda x: x.detach().clone().contiguous()),
)
