"""Small networks, continued: how layers are joined."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks import Case, Net, conv, head, two_convs


def residual(net: Any, x: Tensor) -> Tensor:
    x = F.relu(net.a(x))
    x = x + net.c(F.relu(net.b(x)))
    return head(net, F.relu(x))


def inplace_residual(net: Any, x: Tensor) -> Tensor:
    x = F.relu(net.a(x))
    y = net.c(F.relu(net.b(x)))
    y += x
    return head(net, F.relu(y, inplace=True))


def gated(net: Any, x: Tensor) -> Tensor:
    x = F.relu(net.a(x))
    gate = torch.sigmoid(net.up(F.relu(net.down(x.mean((2, 3), keepdim=True)))))
    return head(net, net.b(x * gate))


def zero_padded(net: Any, x: Tensor) -> Tensor:
    """As ResNets for CIFAR go from one stage to the next, twice."""
    x = F.relu(net.a(x))
    x = F.relu(F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1)) + net.c(F.relu(net.b(x))))
    x = F.relu(F.pad(x, (0, 0, 0, 0, 0, 2)) + net.d(x))
    return head(net, x)


def dense_block(net: Any, x: Tensor) -> Tensor:
    x = net.a(x)
    y = net.b(F.relu(net.na(x)))
    z = net.c(F.relu(net.nb(torch.cat([x, y], 1))))
    return head(net, F.relu(net.nc(torch.cat([x, y, z], 1))))


JOINED = (
    Case("residual", lambda: Net(residual, a=conv(3, 6), b=conv(6, 5), c=conv(5, 6), fc=nn.Linear(6, 4)), ("a", "b")),
    Case(
        "residual in place",
        lambda: Net(inplace_residual, a=conv(3, 6), b=conv(6, 5), c=conv(5, 6), fc=nn.Linear(6, 4)),
        ("a", "b"),
    ),
    Case(
        "cat",
        lambda: Net(
            lambda net, x: head(net, torch.cat([F.relu(net.a(x)), net.b(x).tanh()], 1)),
            a=conv(3, 6),
            b=conv(3, 5),
            fc=nn.Linear(11, 4),
        ),
        ("a", "b"),
    ),
    Case(
        "zero-padded shortcuts",
        lambda: Net(
            zero_padded,
            a=conv(3, 4),
            b=conv(4, 5),
            c=nn.Conv2d(5, 6, 3, stride=2, padding=1),
            d=conv(6, 8),
            fc=nn.Linear(8, 4),
        ),
        ("a", "b"),
        {"c": "zeros are padded in by number", "c#2": "zeros are padded in by number", "d": "zeros are padded in"},
    ),
    Case(
        "cat of one twice",
        lambda: two_convs(lambda net, x: net.c(torch.cat([x, x.relu()], 1)), c=conv(12, 6)),
        ("a", "c", "b"),
    ),
    Case(
        "sum with a cat of one twice",
        lambda: Net(
            lambda net, x: head(net, F.relu(net.a(x) + torch.cat([net.b(x), net.b(x)], 1))),
            a=conv(3, 6),
            b=conv(3, 3),
            fc=nn.Linear(6, 4),
        ),
        ("a",),
    ),
    Case(
        "sum of cats in another order",
        lambda: Net(
            lambda net, x: head(net, torch.cat([net.a(x), net.b(x)], 1) + torch.cat([net.b(x), net.a(x)], 1)),
            a=conv(3, 2),
            b=conv(3, 4),
            fc=nn.Linear(6, 4),
        ),
        ("a",),
    ),
    Case(
        "cat with the input",
        lambda: Net(lambda net, x: head(net, torch.cat([net.a(x), x], 1)), a=conv(3, 6), fc=nn.Linear(9, 4)),
        ("a",),
        {"value1": "fixed coordinates"},
    ),
    Case(
        "dense block",
        lambda: Net(
            dense_block,
            a=conv(3, 6),
            b=conv(6, 4),
            c=conv(10, 3),
            na=nn.BatchNorm2d(6),
            nb=nn.BatchNorm2d(10),
            nc=nn.BatchNorm2d(13),
            fc=nn.Linear(13, 4),
        ),
        ("a", "b", "c"),
    ),
    Case(
        "flatten",
        lambda: Net(lambda net, x: net.fc(F.relu(net.a(x)).flatten(1)), a=conv(3, 6), fc=nn.Linear(384, 4)),
        ("a",),
    ),
    Case(
        "flatten by view",
        lambda: Net(lambda net, x: net.fc(net.a(x).view(x.size(0), -1)), a=conv(3, 6), fc=nn.Linear(384, 4)),
        ("a",),
    ),
    Case(
        "flatten by computed product",
        lambda: Net(
            lambda net, x: net.fc((y := net.a(x)).view(y.size(0), y.size(1) * y.size(2) * y.size(3))),
            a=conv(3, 6),
            fc=nn.Linear(384, 4),
        ),
        ("a",),
    ),
    Case(
        "norm of a flattened space",
        lambda: Net(
            lambda net, x: net.fc(F.relu(net.n(net.a(x).flatten(1)))),
            a=conv(3, 6),
            n=nn.BatchNorm1d(384),
            fc=nn.Linear(384, 4),
        ),
        ("a",),
    ),
    Case(
        "fan-out",
        lambda: Net(
            lambda net, x: (head(net, net.b(y := F.relu(net.a(x)))), net.side(y.amax((2, 3)))),
            a=conv(3, 6),
            b=conv(6, 5),
            fc=nn.Linear(5, 4),
            side=nn.Linear(6, 3),
        ),
        ("a", "b"),
    ),
    Case(
        "squeeze and excitation",
        lambda: Net(gated, a=conv(3, 6), down=conv(6, 3, 1), up=conv(3, 6, 1), b=conv(6, 5), fc=nn.Linear(5, 4)),
        ("a", "down", "b"),
    ),
    Case(
        "grouped",
        lambda: Net(
            lambda net, x: head(net, F.relu(net.b(F.relu(net.c(F.relu(net.a(x))))))),
            a=conv(3, 6),
            c=conv(6, 9, groups=3),
            b=conv(9, 5),
            fc=nn.Linear(5, 4),
        ),
        ("a", "c", "b"),
    ),
    Case(
        "groups of different numbers",
        lambda: Net(
            lambda net, x: head(net, net.b(y := F.relu(net.a(x))) + net.c(y)),
            a=conv(3, 12),
            b=conv(12, 6, groups=2),
            c=conv(12, 6, groups=3),
            fc=nn.Linear(6, 4),
        ),
        ("a", "b"),
    ),
    Case(
        "depthwise with multiplier",
        lambda: Net(
            lambda net, x: head(net, net.b(F.relu(net.n(net.d(net.a(x)))))),
            a=conv(3, 6),
            d=conv(6, 12, groups=6),
            n=nn.BatchNorm2d(12),
            b=conv(12, 5),
            fc=nn.Linear(5, 4),
        ),
        ("a", "b"),
    ),
    Case("glu", lambda: Net(lambda net, x: head(net, F.glu(net.a(x), 1)), a=conv(3, 12), fc=nn.Linear(6, 4)), ("a",)),
    Case("glu layer over positions", lambda: two_convs(lambda net, x: net.l(x), l=nn.GLU(-1)), ("a", "b")),
    Case(
        "glu by chunk",
        lambda: Net(
            lambda net, x: head(net, (c := net.a(x).chunk(2, 1))[0] * c[1].sigmoid()), a=conv(3, 12), fc=nn.Linear(6, 4)
        ),
        ("a",),
    ),
    Case(
        "linear on tokens",
        lambda: Net(lambda net, x: net.fc(F.gelu(net.a(x)).mean(1)), a=nn.Linear(5, 7), fc=nn.Linear(7, 4)),
        ("a",),
        shape=(2, 6, 5),
    ),
    Case(
        "linear on one vector",
        lambda: Net(lambda net, x: net.fc(F.relu(net.a(x))), a=nn.Linear(5, 7), fc=nn.Linear(7, 4)),
        ("a",),
        shape=(5,),
    ),
    Case(
        "channels last",
        lambda: Net(
            lambda net, x: net.fc(F.gelu(net.a(net.c(x).permute(0, 2, 3, 1)))),
            c=conv(3, 6),
            a=nn.Linear(6, 7),
            fc=nn.Linear(7, 4),
        ),
        ("c", "a"),
    ),
    Case(
        "tokens from positions",
        lambda: Net(
            lambda net, x: net.fc(F.relu(net.c(x)).flatten(2).transpose(1, 2)), c=conv(3, 6), fc=nn.Linear(6, 4)
        ),
        ("c",),
    ),
    Case(
        "unbatched",
        lambda: Net(lambda net, x: net.b(F.max_pool2d(F.relu(net.a(x)), 2)), a=conv(3, 6), b=conv(6, 4)),
        ("a",),
        shape=(3, 8, 8),
    ),
    Case(
        "one dimension",
        lambda: Net(
            lambda net, x: net.b(net.d(F.relu(net.n(net.a(x))))),
            a=nn.Conv1d(3, 6, 3, padding="same"),
            n=nn.BatchNorm1d(6),
            d=nn.Conv1d(6, 6, 3, groups=6),
            b=nn.Conv1d(6, 4, 1),
        ),
        ("a",),
        shape=(2, 3, 9),
    ),
    Case(
        "three dimensions",
        lambda: Net(
            lambda net, x: net.b(F.max_pool3d(F.relu(net.n(net.a(x))), 2)),
            a=nn.Conv3d(3, 6, 3, dilation=2),
            n=nn.BatchNorm3d(6),
            b=nn.Conv3d(6, 4, 1),
        ),
        ("a",),
        shape=(2, 3, 6, 6, 6),
    ),
    Case(
        "transposed",
        lambda: Net(
            lambda net, x: net.c(F.relu(net.b(F.relu(net.a(x))))),
            a=nn.ConvTranspose2d(3, 6, 2, 2),
            b=nn.ConvTranspose2d(6, 5, 3),
            c=conv(5, 4),
        ),
        ("a", "b"),
    ),
    Case(
        "functional",
        lambda: Net(
            lambda net, x: F.linear(
                F.batch_norm(
                    F.conv2d(x, net.w, net.v, padding=1).relu(),
                    net.n.running_mean,
                    net.n.running_var,
                    net.n.weight,
                    net.n.bias,
                ).mean((2, 3)),
                net.fc.weight,
            ),
            w=nn.Parameter(torch.ones(6, 3, 3, 3)),
            v=nn.Parameter(torch.ones(6)),
            n=nn.BatchNorm2d(6),
            fc=nn.Linear(6, 4),
        ),
        ("w",),
    ),
)
