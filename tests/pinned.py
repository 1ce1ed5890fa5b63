"""Small networks, continued: what must pin, and the reason to be given."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.architectures import JOINED
from tests.networks import ACTIVATIONS, FUNCTIONS, LAYERS, Case, Net, conv, head, pinned, two_convs
from tests.sharing import SHARED, WithBuffer, parameter, shared_norm_weight, tie


def relu(x: Tensor) -> Tensor:
    """A user's own function with a well-known name: not elementwise at all."""
    return x - x.mean(1, keepdim=True)


def _hooked(pre: bool) -> nn.Module:
    net: Any = two_convs(lambda net, x: net.r(x), r=nn.ReLU())
    if pre:
        net.r.register_forward_pre_hook(lambda module, args: (args[0].flip(1),))
    else:
        net.r.register_forward_hook(lambda module, args, result: result.cumsum(1))
    return net  # type: ignore[no-any-return]


def _embedding_tied() -> nn.Module:
    net = Net(
        lambda net, x: net.fc(net.mix(F.relu(net.a(net.table(x.abs().clamp(max=4).long()))))),
        table=nn.Embedding(5, 6),
        a=nn.Linear(6, 6),
        mix=nn.Linear(6, 6),
        fc=nn.Linear(6, 5),
    )
    return tie(net, "table", "fc")  # type: ignore[no-any-return]


def _changed_view(net: Any, x: Tensor) -> Tensor:
    view = x.transpose(2, 3)
    x.mul_(net.g)
    return view + x.transpose(2, 3)


PINNED = (
    pinned("unknown operation", "unknown operation cumsum", lambda net, x: x.cumsum(1)),
    pinned("user's own relu", "over the channels", lambda net, x: relu(x)),
    pinned("layer norm", "layer_norm mixes channels", lambda net, x: net.n(x), n=nn.LayerNorm([6, 8, 8])),
    pinned("local response norm", "local_response_norm mixes", lambda net, x: net.n(x), n=nn.LocalResponseNorm(3)),
    pinned("group norm", "group norm mixes channels", lambda net, x: net.n(x), n=nn.GroupNorm(2, 6)),
    pinned(
        "batch statistics", "batch statistics", lambda net, x: net.n(x), n=nn.BatchNorm2d(6, track_running_stats=False)
    ),
    pinned(
        "torch.batch_norm",
        "unknown operation batch_norm",
        lambda net, x: torch.batch_norm(
            x, net.n.weight, net.n.bias, net.n.running_mean, net.n.running_var, False, 0.1, 1e-5, False
        ),
        n=nn.BatchNorm2d(6),
    ),
    pinned("softmax over channels", "softmax over the channels", lambda net, x: F.softmax(x, 1)),
    pinned("softmax2d", "softmax over the channels", lambda net, x: net.s(x), s=nn.Softmax2d()),
    pinned("mean over channels", "mean over the channels", lambda net, x: x - x.mean(1, keepdim=True)),
    pinned("matmul", "matmul of activations", lambda net, x: x @ x),
    pinned("division by an activation", "division by a tensor", lambda net, x: x / (x.abs() + 1)),
    pinned("division with rounding", "division with rounding", lambda net, x: torch.div(x, 0.1, rounding_mode="floor")),
    pinned("to integers", "to torch.int64", lambda net, x: x.to(torch.int64).double()),
    pinned("chosen channels", "indexing of the channels", lambda net, x: x[:, [5, 4, 3, 2, 1, 0]]),
    pinned("all channels by number", "taken by number", lambda net, x: x[:, :6]),
    pinned("flip", "unknown operation flip", lambda net, x: x.flip(1)),
    pinned(
        "channel shuffle",
        "written into a reshape",
        lambda net, x: x.view(x.size(0), 2, 3, 8, 8).transpose(1, 2).reshape(x.size(0), -1, 8, 8),
    ),
    pinned("written-in width", "written in", lambda net, x: x.view(-1, 6, 8, 8)),
    pinned("written-in width, keyword", "written in", lambda net, x: x.reshape(shape=(-1, 6, 64)).unsqueeze(3)),
    pinned("unflatten", "written into unflatten", lambda net, x: x.unflatten(1, (6, 1)).squeeze(2)),
    pinned("width as a number", "number of channels", lambda net, x: x / x.shape[1]),
    pinned("width in arithmetic", "number of channels", lambda net, x: x * (x.size(1) ** 0.5)),
    pinned("width of a layer", "also used otherwise (a.out_channels)", lambda net, x: x / net.a.out_channels),
    pinned(
        "width of a layer in arithmetic",
        "also used otherwise (a.out_channels)",
        lambda net, x: x * net.a.out_channels**0.5,
    ),
    pinned("element count", "number of channels", lambda net, x: x / x.numel()),
    pinned("split with sizes", "split with fixed sizes", lambda net, x: torch.cat(torch.split(x, [2, 4], 1), 1)),
    pinned(
        "stretches by number",
        "taken by number",
        lambda net, x: torch.cat([x[:, :2].tanh(), x[:, 2:-1], F.silu(x[:, -1:])], 1),
    ),
    pinned("uneven chunks", "fewer parts than asked", lambda net, x: torch.cat(x.chunk(4, 1), 1)),
    pinned(
        "chunks of different use",
        "chunks of one axis",
        lambda net, x: torch.cat([(c := x.chunk(2, 1))[0].tanh(), c[1]], 1),
    ),
    pinned(
        "channels of ones", "padding of the channel axis", lambda net, x: F.pad(x, (0, 0, 0, 0, 0, 1), value=1.0)[:, 1:]
    ),
    pinned(
        "channels cut off",
        "padding of the channel axis",
        lambda net, x: F.pad(x, (0, 0, 0, 0, -1, 1)),
    ),
    pinned(
        "stack",
        "fixed coordinates",
        lambda net, x: torch.stack([x, net.k]).sum(0),
        k=parameter(2, 6, 8, 8),
    ),
    pinned("constant with fixed coordinates", "fixed coordinates", lambda net, x: x * torch.arange(6.0).view(6, 1, 1)),
    pinned(
        "buffer that is not saved", "fixed coordinates", lambda net, x: net.t(x), t=WithBuffer(6, 1, 1, saved=False)
    ),
    pinned("active dropout", "active in evaluation mode", lambda net, x: F.dropout(x, 1e-300)),
    pinned(
        "depthwise with groups written in",
        "fixed number of groups",
        lambda net, x: F.conv2d(x, net.k, padding=1, groups=6),
        k=parameter(6, 1, 3, 3),
    ),
    pinned("view changed in place", "changed in place", lambda net, x: _changed_view(net, x), g=parameter(6, 1, 1)),
    pinned(
        "parameter of a norm used otherwise",
        "also used otherwise",
        lambda net, x: net.n(x) * net.n.weight.sum(),
        n=nn.BatchNorm2d(6),
    ),
    pinned("scale as shift", "used in two ways", lambda net, x: x * net.g + net.g, g=parameter(6, 1, 1)),
    pinned("instance norm without tensors", "instance norm without", lambda net, x: net.n(x), n=nn.InstanceNorm2d(6)),
    Case("norms with one weight", shared_norm_weight, ("b",), {"a": "used in two ways"}),
    Case("hook", lambda: _hooked(False), ("b",), {"a": "layer ReLU with a hook"}),
    Case("hook before", lambda: _hooked(True), ("b",), {"a": "layer ReLU with a hook"}),
    Case(
        "weight norm",
        lambda: two_convs(lambda net, x: net.c(F.relu(x)), c=nn.utils.parametrizations.weight_norm(conv(6, 6))),
        ("b",),
        {"a": "unknown layer"},
    ),
    Case("embedding tied to the classifier", _embedding_tied, ("a",), {"mix": "used the other way around"}, (2, 3)),
    Case(
        "one channel over many",
        lambda: Net(
            lambda net, x: head(net, F.relu(net.a(x)) * net.m(x).sigmoid()),
            a=conv(3, 6),
            m=conv(3, 1),
            fc=nn.Linear(6, 4),
        ),
        ("a",),
        {"m": "broadcast over many"},
    ),
    Case(
        "indices of a pool",
        lambda: Net(
            lambda net, x: head(net, F.max_unpool2d(*F.max_pool2d(net.a(x), 2, return_indices=True), [2, 2])),
            a=conv(3, 6),
            fc=nn.Linear(6, 4),
        ),
        (),
        {"a": "unknown operation max_pool2d_with_indices"},
    ),
    Case(
        "grouped transposed",
        lambda: two_convs(lambda net, x: net.t(x), t=nn.ConvTranspose2d(6, 6, 3, 1, 1, groups=2)),
        ("b",),
        {"a": "grouped transposed"},
    ),
    Case(
        "shape of another space",
        lambda: Net(
            lambda net, x: head(net, net.a(x).reshape(net.b(x).shape)), a=conv(3, 6), b=conv(3, 6), fc=nn.Linear(6, 4)
        ),
        (),
        {"a": "taken from another", "b": "taken from another"},
    ),
    Case(
        "linear over positions",
        lambda: two_convs(lambda net, x: net.m(x), m=nn.Linear(8, 8)),
        ("b",),
        {"a": "linear map over another axis"},
    ),
)

CASES = (*ACTIVATIONS, *LAYERS, *FUNCTIONS, *JOINED, *SHARED, *PINNED)
