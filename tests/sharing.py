"""Small networks, continued: tensors that ride along, layers that are called twice, tensors that are shared."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks import Case, Net, conv, head, two_convs


def parameter(*shape: int) -> nn.Parameter:
    """A parameter of this shape."""
    return nn.Parameter(torch.ones(shape))


class WithBuffer(nn.Module):
    """Adds a buffer."""

    def __init__(self, *shape: int, saved: bool = True) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(shape), persistent=saved)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table  # type: ignore[operator]


def tie(net: Any, first: str, second: str, name: str = "weight") -> Any:
    setattr(getattr(net, second), name, getattr(getattr(net, first), name))
    return net


def _shared() -> nn.Module:
    net = Net(
        lambda net, x: head(net, F.relu(net.c(F.relu(net.b(F.relu(net.a(x))))))),
        a=conv(3, 6),
        b=conv(6, 6),
        c=conv(6, 6),
        fc=nn.Linear(6, 4),
    )
    return tie(net, "b", "c")  # type: ignore[no-any-return]


def shared_norm_weight() -> nn.Module:
    net = two_convs(lambda net, x: net.n(F.relu(net.m(x))), m=nn.BatchNorm2d(6), n=nn.BatchNorm2d(6))
    return tie(net, "m", "n")  # type: ignore[no-any-return]


SHARED = (
    Case("layer scale", lambda: two_convs(lambda net, x: x + net.g * x.relu(), g=parameter(6, 1, 1)), ("a", "b")),
    Case("parameter added", lambda: two_convs(lambda net, x: F.relu(x + net.g), g=parameter(1, 6, 1, 1)), ("a", "b")),
    Case("parameter subtracted", lambda: two_convs(lambda net, x: F.relu(x - net.g), g=parameter(6, 1, 1)), ("a", "b")),
    Case("parameter minus", lambda: two_convs(lambda net, x: F.relu(net.g - x), g=parameter(6, 8, 8)), ("a", "b")),
    Case(
        "one number learnt",
        lambda: two_convs(lambda net, x: x * net.g + net.h, g=parameter(1), h=parameter(1, 1, 1)),
        ("a", "b"),
    ),
    Case("buffer added", lambda: two_convs(lambda net, x: F.relu(net.t(x)), t=WithBuffer(6, 1, 1)), ("a", "b")),
    Case(
        "position table added", lambda: two_convs(lambda net, x: net.t(x).relu(), t=WithBuffer(1, 6, 8, 8)), ("a", "b")
    ),
    Case(
        "mask of the input",
        lambda: Net(
            lambda net, x: head(net, F.relu(net.a(x)) * x[:, :1] + x[:, 1:2]), a=conv(3, 6), fc=nn.Linear(6, 4)
        ),
        ("a",),
    ),
    Case("called twice", lambda: two_convs(lambda net, x: net.c(F.relu(net.c(x))), c=conv(6, 6)), ("a", "b")),
    Case(
        "norm called twice", lambda: two_convs(lambda net, x: net.n(F.relu(net.n(x))), n=nn.BatchNorm2d(6)), ("a", "b")
    ),
    Case(
        "depthwise called twice",
        lambda: two_convs(lambda net, x: net.d(F.relu(net.d(x))), d=conv(6, 6, groups=6)),
        ("a", "b"),
    ),
    Case("prelu called twice", lambda: two_convs(lambda net, x: net.p(net.p(x) - 1), p=nn.PReLU(6)), ("a", "b")),
    Case(
        "scale used twice",
        lambda: two_convs(lambda net, x: F.relu(x * net.g) * net.g, g=parameter(6, 1, 1)),
        ("a", "b"),
    ),
    Case("weight of two layers", _shared, ("a",)),
)
