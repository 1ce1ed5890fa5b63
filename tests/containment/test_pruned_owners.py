"""Owners whose networks hold channels that never change: pruned rows behind norms that keep their offsets."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import canon
from tests.verify.small import disguise, example, tiny

KINDS = ("kept", "positive", "negative", "tiny variance", "nothing")


def pruned(kind: str, seed: int, count: int = 4) -> nn.Module:
    """A network in which some rows of every convolution have no weights."""
    whole = tiny(seed).double()
    net: Any = whole
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for conv, norm in ((net.conv1, net.norm1), (net.conv2, net.norm2), (net.conv3, net.norm3)):
            at = torch.randperm(len(conv.weight), generator=generator)[:count]
            conv.weight[at] = 0
            if conv.bias is not None:
                conv.bias[at] = 0
            if kind == "kept":
                continue
            norm.running_mean[at] = 0
            if kind == "tiny variance":
                norm.running_var[at] = 1e-12
            elif kind == "nothing":
                norm.bias[at] = 0
            else:
                norm.bias[at] = (1 if kind == "positive" else -1) * (norm.bias[at].abs() + 0.05)
    return whole


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(["nso_zero", "nso_clique", "mix-opseq"]),
    st.integers(0, 20),
    st.sampled_from([0.3, 0.5]),
)
def test_constants_of_the_owner_are_no_obstacle(kind: str, attack: str, seed: int, ratio: float) -> None:
    net, inputs = pruned(kind, seed), example().double()
    suspect = canon.attack(net, inputs, attack, ratio=ratio, seed=seed).model
    found = canon.locate(suspect, net, inputs)
    assert found.answer == "contained", found.reason
    assert found.agreement is not None
    assert found.agreement.difference < 1e-6
    by_key = canon.locate(suspect, canon.register(net, inputs), inputs)
    assert by_key.answer == "contained", by_key.reason


@pytest.mark.parametrize("kind", ["positive", "negative"])
def test_they_are_judged_equal(kind: str) -> None:
    net, inputs = pruned(kind, 0), example().double()
    suspect = canon.attack(net, inputs, "mix-opseq", ratio=0.3, seed=1).model
    assert canon.judge(suspect, inputs, reference=net).answers.network.answer == "equal"


@pytest.mark.parametrize("kind", KINDS)
def test_an_undisguised_copy_stays_as_it_is(kind: str) -> None:
    net, inputs = pruned(kind, 1), example().double()
    found = canon.locate(net, net, inputs)
    assert found.model is not None
    theirs = net.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in found.model.state_dict().items())


def test_a_constant_that_is_gone_is_seen() -> None:
    net, inputs = pruned("positive", 3), example().double()
    suspect: Any = disguise(net, inputs, seed=1)
    with torch.no_grad():
        still = ~suspect.conv3.weight.flatten(1).any(dim=1)
        suspect.norm3.bias[still] = 0
    found = canon.locate(suspect, net, inputs)
    assert found.answer == "derived"
    assert "differs from the owner's" in found.reason


class Gated(nn.Module):
    """Layers behind functions that no scale passes, one of them a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1)
        self.last = nn.Conv2d(32, 48, 1, bias=False)
        self.norm, self.head = nn.BatchNorm2d(48), nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        act = nn.functional.silu
        x = act(self.first(x))
        x = x * torch.sigmoid(self.excite(act(self.squeeze(x.mean((2, 3), keepdim=True)))))
        logits: torch.Tensor = self.head(act(self.norm(self.last(x))).mean((2, 3)))
        return logits


@pytest.mark.parametrize("attack", ["nso_zero", "nso_clique", "mix-opseq"])
@pytest.mark.parametrize("seed", range(2))
def test_constants_that_are_no_multiples_of_each_other(attack: str, seed: int) -> None:
    torch.manual_seed(seed)
    net, inputs = Gated().double().eval(), torch.randn(1, 3, 8, 8, dtype=torch.float64)
    nn.init.normal_(net.norm.bias, 0.0, 0.1)
    with torch.no_grad():
        net.first.weight[:4] = 0
        net.last.weight[:5] = 0
        net.squeeze.weight[:2] = 0
    suspect = canon.attack(net, inputs, attack, ratio=0.3, seed=seed).model
    found = canon.locate(suspect, net, inputs)
    assert found.answer == "contained", found.reason
    by_key = canon.locate(suspect, canon.register(net, inputs), inputs)
    assert by_key.answer in ("contained", "derived"), by_key.reason  # its numbers are coarse: values may be mistaken
    assert canon.judge(suspect, inputs, reference=net).answers.network.answer in ("equal", "contained")


class Stream(nn.Module):
    """A residual stream without activations, as in mobile networks, and gated channels that a depthwise layer moves."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm1 = nn.Conv2d(3, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.wide, self.norm2 = nn.Conv2d(24, 40, 1, bias=False), nn.BatchNorm2d(40)
        self.moved, self.norm3 = nn.Conv2d(40, 40, 3, padding=1, groups=40, bias=False), nn.BatchNorm2d(40)
        self.squeeze, self.excite = nn.Conv2d(40, 8, 1), nn.Conv2d(8, 40, 1)
        self.narrow, self.norm4 = nn.Conv2d(40, 24, 1, bias=False), nn.BatchNorm2d(24)
        self.last, self.norm5 = nn.Conv2d(24, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48)
        self.head = nn.Linear(48, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        act = nn.functional.silu
        x = self.norm1(self.stem(images))
        y = act(self.norm3(self.moved(act(self.norm2(self.wide(x))))))
        y = y * torch.sigmoid(self.excite(act(self.squeeze(y.mean((2, 3), keepdim=True)))))
        x = act(self.norm5(self.last(x + self.norm4(self.narrow(y)))))
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits


@lru_cache(maxsize=1)
def pruned_stream() -> nn.Module:
    """Rows of every convolution without weights; norms keep what they are given, which is then a constant."""
    torch.manual_seed(0)
    net = Stream()
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight[torch.randperm(len(layer.weight))[: len(layer.weight) // 8]] = 0
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = None
                nn.init.uniform_(layer.weight, 0.5, 1.5)
                nn.init.normal_(layer.bias, 0.0, 0.3)
        net.train()(torch.randn(64, 3, 8, 8))
    return net.eval().double()  # the figures of float32 are rounded too much for some disguises


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("attack", ["nso_zero", "nso_clique", "nso_split", "mix-opseq", "mix-opseq-per-merge-group"])
def test_a_stream_with_pruned_rows_is_all_there(attack: str, by_key: bool) -> None:
    """What cliques added to a row without weights has cancelled; constants of a key are as exact as it keeps them."""
    net, inputs = pruned_stream(), torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    suspect = canon.attack(net, inputs, attack, ratio=0.3, seed=1).model
    anchor = {"layout_key": canon.register(net, inputs, seed=0)} if by_key else {"reference": net}
    found = canon.judge(suspect, inputs, **anchor).answers.network
    assert found.answer in ("equal", "contained"), found.reason
