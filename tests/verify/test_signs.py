"""Signs that odd functions pass: `f(−u) = −f(u)`, so that a channel may be negated on both sides, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from canon.api import check_evidence, judge
from canon.graph import trace
from canon.verify import register
from tests.verify.small import TinyNet

GENERATOR = torch.Generator().manual_seed(0)
NUMBERS = torch.randn(4, 12, generator=GENERATOR)
IMAGES = torch.randn(2, 3, 8, 8, generator=GENERATOR)
SERIES = torch.randn(3, 5, 6, generator=GENERATOR)
UNITS = 20


class Odd(nn.Module):
    """A perceptron with one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, UNITS), nn.Linear(UNITS, UNITS), nn.Linear(UNITS, 5)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.function(self.second(self.function(self.first(x)))))
        return found

    def negate(self, signs: Tensor, order: Tensor) -> None:
        move((self.second.weight, self.second.bias), signs, order)
        self.head.weight.copy_((self.head.weight * signs)[:, order])


class Normed(TinyNet):
    """Norms in front of an odd function, and a sum of two of its values."""

    def __init__(self) -> None:
        super().__init__(UNITS)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.tanh(self.norm1(self.conv1(images)))
        x = x + torch.tanh(self.norm2(self.conv2(x)))
        x = torch.relu(self.norm3(self.conv3(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits

    def negate(self, signs: Tensor, order: Tensor) -> None:
        self.conv2.weight.copy_((self.conv2.weight * signs[:, None, None])[:, order])
        self.conv3.weight.copy_((self.conv3.weight * signs[:, None, None])[:, order])
        for conv, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
            move((norm.weight, norm.bias), signs, order)
            move((conv.weight, norm.get_buffer("running_mean"), norm.get_buffer("running_var")), signs.abs(), order)
        assert self.conv2.bias is not None
        move((self.conv2.bias,), signs.abs(), order)


class Recurrent(nn.Module):
    """A recurrent layer between two linear ones."""

    def __init__(self, made: Callable[..., nn.RNNBase], odd: slice) -> None:
        super().__init__()
        self.before, self.memory, self.after = nn.Linear(6, 16), made(16, UNITS, batch_first=True), nn.Linear(UNITS, 24)
        self.head, self.odd = nn.Linear(24, 5), odd

    def forward(self, x: Tensor) -> Tensor:
        states = self.memory(torch.relu(self.before(x)))[0]
        logits: Tensor = self.head(torch.relu(self.after(states[:, -1])))
        return logits

    def negate(self, signs: Tensor, order: Tensor) -> None:
        memory = self.memory
        back = memory.get_parameter("weight_hh_l0")
        back.copy_((back * signs)[:, order])
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            for index, gate in enumerate(memory.get_parameter(name).split(UNITS)):
                move((gate,), signs if index == self.odd.start else signs.abs(), order)
        self.after.weight.copy_((self.after.weight * signs)[:, order])


def move(tensors: tuple[Tensor, ...], signs: Tensor, order: Tensor) -> None:
    """Bring rows into another order, some with the other sign."""
    for tensor in tensors:
        tensor.copy_((tensor * signs.view(-1, *[1] * (tensor.ndim - 1)))[order])


NETWORKS: dict[str, tuple[Callable[[], Any], Tensor]] = {
    "tanh": (lambda: Odd(torch.tanh), NUMBERS),
    "sine": (lambda: Odd(torch.sin), NUMBERS),
    "cut on both sides": (lambda: Odd(F.hardtanh), NUMBERS),
    "cubes": (lambda: Odd(lambda x: x**3), NUMBERS),
    "behind norms": (Normed, IMAGES),
    "LSTM": (lambda: Recurrent(nn.LSTM, slice(2, 3)), SERIES),
    "GRU": (lambda: Recurrent(nn.GRU, slice(2, 3)), SERIES),
    "RNN": (lambda: Recurrent(nn.RNN, slice(0, 1)), SERIES),
}


def network(name: str, seed: int = 0) -> tuple[Any, Tensor]:
    make, example = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = make().eval()
        for part, tensor in net.named_parameters():
            if "bias" in part:
                nn.init.normal_(tensor, 0.0, 0.3)
    return net, example


def negated(owner: Any, example: Tensor) -> Any:
    generator = torch.Generator().manual_seed(1)
    thief = copy.deepcopy(owner)
    signs = torch.randint(0, 2, (UNITS,), generator=generator) * 2.0 - 1.0
    with torch.no_grad():
        thief.negate(signs, torch.randperm(UNITS, generator=generator))
        torch.testing.assert_close(thief(example), owner(example), atol=1e-5, rtol=1e-5)
    return thief


@pytest.mark.parametrize("by_key", [False, True], ids=["reference", "key"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_copy_with_other_signs_is_equal(name: str, by_key: bool) -> None:
    owner, example = network(name)
    anchor = {"layout_key": register(owner, example)} if by_key else {"reference": owner}
    found = judge(negated(owner, example), example, **anchor)
    assert found.answers.network.answer == "equal", found.answers.network
    check_evidence(found.evidence)


@pytest.mark.parametrize("name", ["tanh", "LSTM"])
def test_a_changed_copy_with_other_signs_is_derived(name: str) -> None:
    owner, example = network(name)
    thief = negated(owner, example)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for tensor in thief.parameters():
            tensor.mul_(1 + 0.02 * torch.randn(tensor.shape, generator=generator))
    for anchor in ({"layout_key": register(owner, example)}, {"reference": owner}):
        assert judge(thief, example, **anchor).answers.network.answer == "derived"


@pytest.mark.parametrize("name", ["tanh", "behind norms", "LSTM"])
def test_a_stranger_is_refuted_by_its_key(name: str) -> None:
    owner, example = network(name)
    found = judge(network(name, 5)[0], example, layout_key=register(owner, example))
    assert found.verdict.kind == "refuted", found.verdict


def test_signs_that_are_not_the_functions_are_no_order_of_channels() -> None:
    """A channel that is negated on one side only computes something else."""
    owner, example = network("tanh")
    liar = copy.deepcopy(owner)
    with torch.no_grad():
        liar.second.weight[3].neg_()
    for anchor in ({"layout_key": register(owner, example)}, {"reference": owner}):
        assert judge(liar, example, **anchor).answers.network.answer != "equal"


class Mixed(nn.Module):
    """What passes a sign beside what does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 8) for _ in range(6))
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d, e, f = (layer(x) for layer in self.layers)
        parts = [torch.tanh(a) + torch.relu(b), torch.sigmoid(c) * torch.tanh(d), torch.tanh(e) * torch.relu(f)]
        found: Tensor = self.head(torch.cat(parts, 1))
        return found


def test_a_tap_passes_what_all_that_it_ties_lets_pass() -> None:
    graph = trace(Mixed().eval(), torch.randn(2, 6))
    taps = [consumer.tap for space in graph.spaces for consumer in space.consumers]
    kinds = ["odd" if t in graph.odd_taps else "fixed" if t in graph.fixed_taps else "free" for t in taps]
    assert kinds == ["fixed", "odd", "free"], "a sum, a gate that passes the sign, a gate that passes scale"
    assert graph.odd_taps <= graph.fixed_taps
