"""Whatever keeps the function never refutes: rewrites that alignment undoes, and those that it cannot."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from canon.api import check_evidence, judge
from canon.attacks import attack
from tests.preservation import randomize
from tests.strategies import networks
from tests.verify.small import disguise

STRONG = ("proved", "matches")


class Gated(nn.Module):
    """A block with a residual stream without norms, a gated unit, and two linear layers with nothing between."""

    def __init__(self, width: int = 12, hidden: int = 20) -> None:
        super().__init__()
        self.into = nn.Linear(6, width)
        self.gate, self.up, self.down = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
        )
        self.first, self.second = nn.Linear(width, 9, bias=False), nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        x = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        out: Tensor = self.second(self.first(x))
        return out


def orthogonal(size: int, seed: int) -> Tensor:
    drawn = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    turn: Tensor = torch.linalg.qr(drawn).Q.float()
    return turn


def rotated_stream(net: Gated, seed: int) -> None:
    turn = orthogonal(12, seed)
    for layer in (net.into, net.down):
        layer.weight.copy_(turn @ layer.weight)
    net.into.bias.copy_(turn @ net.into.bias)
    for reader in (net.gate, net.up, net.first):
        reader.weight.copy_(reader.weight @ turn.T)


def permuted_stream(net: Gated, seed: int) -> None:
    order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    for layer in (net.into, net.down):
        layer.weight.copy_(layer.weight[order].clone())
    net.into.bias.copy_(net.into.bias[order].clone())
    for reader in (net.gate, net.up, net.first):
        reader.weight.copy_(reader.weight[:, order].clone())


def flipped_unit(net: Gated, seed: int) -> None:
    signs = torch.where(torch.rand(20, generator=torch.Generator().manual_seed(seed)) < 0.5, -1.0, 1.0)
    net.up.weight.mul_(signs[:, None])
    net.down.weight.mul_(signs)


def mixed_basis(net: Gated, seed: int) -> None:
    turn = orthogonal(9, seed)
    net.first.weight.copy_(turn @ net.first.weight)
    net.second.weight.copy_(net.second.weight @ turn.T)


REWRITES = [rotated_stream, permuted_stream, flipped_unit, mixed_basis]


@given(st.lists(st.sampled_from(REWRITES), min_size=1, max_size=4), st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_what_alignment_cannot_undo_is_not_refuted(rewrites: list[object], seed: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        owner = Gated().eval()
    suspect = copy.deepcopy(owner)
    with torch.no_grad():
        for index, change in enumerate(rewrites):
            change(suspect, seed + index)  # type: ignore[operator]
    example = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    found = judge(suspect, example, reference=owner)
    assert found.answers.function.answer == "agree", "the rewrites keep the function"
    assert found.verdict.kind != "refuted", found.verdict
    check_evidence(found.evidence)


@given(networks(), st.integers(0, 2**16))
@settings(max_examples=15, deadline=None)
def test_disguises_of_random_networks_are_not_refuted(network: nn.Module, seed: int) -> None:
    owner = randomize(network, seed)
    example = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = judge(disguise(owner, example, seed=seed), example, reference=owner)
    assert found.verdict.kind != "refuted", found.verdict
    if found.answers.function.answer == "agree":
        assert found.answers.network.answer in ("equal", "contained", "derived", "not decided")
    check_evidence(found.evidence)


@pytest.mark.parametrize("op", ["nso_zero", "nso_clique", "nso_split", "mix-opseq"])
def test_a_stranger_is_never_believed(op: str) -> None:
    from tests.verify.small import example, tiny

    suspect = attack(tiny(1, 32), example(), op, ratio=0.3).model
    assert judge(suspect, example(), reference=tiny(0, 32)).verdict.kind not in STRONG
