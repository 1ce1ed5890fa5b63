"""Activations are known by their curve, however they were written; what is another function stays one."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import canon
from canon.normal.lower import lower
from tests.networks import Net

Written = Callable[[Tensor], Tensor]

RELU: dict[str, Written] = {
    "hardtanh": nn.Hardtanh(0, 1e6),
    "clamp": lambda x: x.clamp(min=0),
    "where": lambda x: torch.where(x > 0, x, 0),
    "where not": lambda x: torch.where(x < 0, torch.zeros_like(x), x),
    "less its minimum": lambda x: x - torch.minimum(x, torch.zeros_like(x)),
    "less its clamp": lambda x: x - x.clamp(max=0),
    "turned": lambda x: -torch.minimum(-x, torch.zeros_like(x)),
    "relu6": lambda x: 1e4 * F.relu6(x / 1e4),
    "elu": nn.ELU(1e-9),
    "celu": nn.CELU(1e-9),
    "threshold": nn.Threshold(0, 0),
    "leaky": nn.LeakyReLU(1e-12),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "a constant of the code": lambda x: torch.max(x, torch.tensor(0.0)),
    "absolute": lambda x: (x + x.abs()) / 2,
    "root": lambda x: (x + torch.sqrt(x * x)) / 2,
    "rrelu": nn.RReLU(0.0, 0.0),
    "softplus": nn.Softplus(1e6),
    "mask": lambda x: x * (x > 0).to(x.dtype),
    "masked": lambda x: x.masked_fill(x < 0, 0.0),
    "sign": lambda x: x * (torch.sign(x) + 1) / 2,
    "a steep gelu": lambda x: F.gelu(1e6 * x) / 1e6,
    "in place": lambda x: (x * 1.0).clamp_(min=0),
}
OTHERS: dict[str, tuple[nn.Module, Written]] = {
    "silu by exp": (nn.SiLU(), lambda x: x / (1 + torch.exp(-x))),
    "silu by tanh": (nn.SiLU(), lambda x: 0.5 * x * (1 + torch.tanh(x / 2))),
    "gelu by erf": (nn.GELU(), lambda x: 0.5 * x * (1 + torch.erf(x / sqrt(2)))),
    "gelu by erfc": (nn.GELU(), lambda x: 0.5 * x * torch.erfc(-x * 0.70710678)),
    "gelu by tanh": (
        nn.GELU(approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))),
    ),
    "sigmoid by tanh": (nn.Sigmoid(), lambda x: 0.5 * (1 + torch.tanh(x / 2))),
    "sigmoid by exp": (nn.Sigmoid(), lambda x: 1 / (1 + torch.exp(-x))),
    "hardswish": (nn.Hardswish(), lambda x: x * F.relu6(x + 3) / 6),
    "tanh": (nn.Tanh(), lambda x: 2 * torch.sigmoid(2 * x) - 1),
    "leaky": (nn.LeakyReLU(0.1), lambda x: F.relu(x) - 0.1 * F.relu(-x)),
    "leaky maximum": (nn.LeakyReLU(1 / 7), lambda x: torch.maximum(x, x / 7)),
    "relu6": (nn.ReLU6(), lambda x: torch.minimum(F.relu(x), torch.full_like(x, 6.0))),
}
WRITTEN = {**{f"relu: {name}": (nn.ReLU(), written) for name, written in RELU.items()}, **OTHERS}

APART: dict[str, tuple[nn.Module, Written]] = {
    "a low ceiling": (nn.ReLU(), nn.Hardtanh(0, 50)),
    "a slope": (nn.ReLU(), nn.LeakyReLU(1e-3)),
    "a round corner": (nn.ReLU(), nn.Softplus(100)),
    "another threshold": (nn.ReLU(), lambda x: torch.where(x > 0.01, x, 0)),
    "two kinds of gelu": (nn.GELU(), nn.GELU(approximate="tanh")),
    "a quick gelu": (nn.GELU(), lambda x: x * torch.sigmoid(1.702 * x)),
    "shifted": (nn.ReLU(), lambda x: F.relu(x) + 0.1),
    "of the largest": (nn.ReLU(), lambda x: F.relu(x) * (x.max() > 0)),
    "of a neighbour": (nn.ReLU(), lambda x: x * (x.flip(1) > 0)),
}


def network(written: Written) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Any:
        return net.third(net.act(net.second(net.act(net.first(x)))))

    act = written if isinstance(written, nn.Module) else Net(lambda _, x: written(x))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second, third = nn.Linear(16, 48), nn.Linear(48, 48), nn.Linear(48, 12)
        return Net(forward, first=first, second=second, third=third, act=act).eval()


def labels(written: Written) -> list[Any]:
    order = lower(network(written), torch.randn(2, 16)).order
    return [(node.kind, node.label) for node in order if node.kind not in ("linear", "input", "output")]


@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_the_same_function(name: str) -> None:
    plain, written = WRITTEN[name]
    assert labels(written) == labels(plain)


@pytest.mark.parametrize("name", APART)
def test_another_function_is_another(name: str) -> None:
    plain, written = APART[name]
    assert labels(written) != labels(plain)


@pytest.mark.parametrize("name", ["relu: hardtanh", "relu: relu6", "relu: a constant of the code", "sigmoid by exp"])
@pytest.mark.parametrize("by_key", [False, True])
def test_such_a_copy_is_equal(name: str, by_key: bool) -> None:
    plain, written = WRITTEN[name]
    mine, example = network(plain), torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    anchor = {"layout_key": canon.register(mine, example)} if by_key else {"reference": mine}
    found = canon.judge(network(written), example, **anchor)
    assert found.answers.network.answer == "equal", found.answers.network
    assert any("written in another way" in step for step in found.evidence["program"]["steps"])


def test_a_factor_besides_goes_into_what_follows() -> None:
    mine, example = network(nn.ReLU()), torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    theirs = network(lambda x: x + x.abs())
    with torch.no_grad():
        for name in ("second", "third"):
            theirs.get_parameter(f"{name}.weight").mul_(0.5)
    assert canon.judge(theirs, example, reference=mine).answers.network.answer == "equal"
