"""Owners whose networks hold channels that never change: pruned rows behind norms that keep their offsets."""

from __future__ import annotations

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
