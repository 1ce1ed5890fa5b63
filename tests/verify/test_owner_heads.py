"""Attention heads in another order and basis are the owner's network, and a stranger's heads stay a stranger's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import canon
from canon.api import check_evidence
from canon.errors import UnsupportedModelError
from canon.verify import align
from canon.verify.owner_heads import in_owner_heads
from canon.verify.traced import Traced
from canon_benchmarks.families import FAMILIES, build
from tests.graph.test_heads import HEADS, WIDTH, Written

IDS = torch.arange(24).reshape(2, 12)


class Text(nn.Module):
    """Written attention and an MLP between norms, on a stream that may be permuted."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.table, self.head = nn.Embedding(40, WIDTH), nn.Linear(WIDTH, 40)
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(5))
            self.attention = nn.ModuleList(Written() for _ in range(2))
            self.up = nn.ModuleList(nn.Linear(WIDTH, 32) for _ in range(2))
            self.down = nn.ModuleList(nn.Linear(32, WIDTH) for _ in range(2))
            for norm in self.norms:
                nn.init.uniform_(norm.get_parameter("weight"), 0.5, 1.5)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for i, (attention, up, down) in enumerate(zip(self.attention, self.up, self.down, strict=True)):
            x = x + attention(self.norms[2 * i](x))
            x = x + down(torch.nn.functional.gelu(up(self.norms[2 * i + 1](x))))
        result: Tensor = self.head(self.norms[4](x))
        return result


def turned(model: nn.Module, example: object, seed: int = 0) -> nn.Module:
    return canon.attack(model, example, "turned_heads", seed=seed).model  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def owner() -> nn.Module:
    return Text()


def test_turned_heads_are_equal(owner: nn.Module) -> None:
    found = canon.judge(turned(owner, IDS), IDS, reference=owner)
    assert found.answers.network.answer == "equal"
    assert found.verdict.kind == "matches"
    assert any("attention heads" in note for note in found.evidence["notes"])
    check_evidence(found.evidence)


def test_with_injected_channels_they_are_equal(owner: nn.Module) -> None:
    suspect = canon.attack(turned(owner, IDS), IDS, "mix-opseq", ratio=0.2).model
    assert canon.judge(suspect, IDS, reference=owner).answers.network.answer == "equal"
    assert canon.locate(suspect, owner, IDS).answer == "contained"


def test_with_noise_they_are_derived_and_the_noise_is_told(owner: nn.Module) -> None:
    suspect = canon.attack(owner, IDS, "turned_heads", after=["noise:relative=0.01"]).model
    found = canon.judge(suspect, IDS, reference=owner).answers.network
    assert found.answer == "derived"
    assert found.residual is not None
    assert 0.003 < found.residual < 0.1


def test_in_half_precision_they_are_equal(owner: nn.Module) -> None:
    assert canon.judge(turned(owner, IDS).half(), IDS, reference=owner).answers.network.answer == "equal"


def test_all_numbers_come_back_where_the_owners_stand(owner: nn.Module) -> None:
    aligned = align(turned(owner, IDS, seed=5), owner, IDS).model
    for (name, ours), theirs in zip(aligned.named_parameters(), owner.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4, msg=name)
    assert canon.certify(turned(owner, IDS), owner, IDS).passed


@pytest.mark.parametrize("family", ["Qwen3", "T5", "Mixtral"])
def test_families_are_equal(family: str) -> None:
    model, example = build(FAMILIES[family])
    assert canon.certify(turned(model, example), model, example).passed


def test_a_strangers_heads_stay_as_they_are(owner: nn.Module) -> None:
    stranger = Text(7)
    with torch.no_grad():
        for mine, theirs in ((stranger.table, owner.get_submodule("table")),):
            mine.weight.copy_(theirs.get_parameter("weight"))  # the stream is the owner's, so that columns can be held
    assert in_owner_heads(stranger, Traced.of(owner, IDS)) is stranger
    found = canon.judge(stranger, IDS, reference=owner)
    assert found.answers.network.answer in ("unrelated", "not decided")


def test_a_basis_that_fits_values_alone_says_nothing() -> None:
    """One head as wide as what it reads: some map brings any values to the owner's; outputs show that it is none."""

    def single(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(8, 1, 16, batch_first=True)
        return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()

    first, second, example = single(0), single(1), torch.randn(2, 5, 8)
    assert in_owner_heads(second, Traced.of(first, example)) is second
    assert in_owner_heads(turned(first, example), Traced.of(first, example)) is not first


def packed(model: nn.Module) -> list[tuple[Tensor, Tensor, Tensor]]:
    """By attention: rows of the packed map, their biases, and columns of outputs, by part and head."""
    return [
        (
            one.get_parameter("packed.weight").data.view(3, HEADS, -1, WIDTH),
            one.get_parameter("packed.bias").data.view(3, HEADS, -1),
            one.get_parameter("out.weight").data.view(WIDTH, HEADS, -1),
        )
        for one in model.get_submodule("attention").children()
    ]


@pytest.mark.parametrize("answer", ["equal", "unrelated"])
def test_heads_that_do_nothing_are_no_obstacle(answer: str) -> None:
    owner, stranger = Text(), Text(7)
    for model in (owner, stranger):
        for rows, biases, columns in packed(model):
            for tensor in (rows[2, 0], biases[2, 0], columns[:, 0]):
                tensor.zero_()
    suspect = turned(owner if answer == "equal" else stranger, IDS)
    assert canon.judge(suspect, IDS, reference=owner).answers.network.answer in (answer, "not decided")
    assert canon.certify(suspect, owner, IDS).passed == (answer == "equal")


def test_heads_with_the_same_values_and_outputs_are_told_by_keys() -> None:
    owner = Text()
    for rows, biases, columns in packed(owner):
        rows[:, 1], biases[:, 1], columns[:, 1] = rows[:, 0], biases[:, 0], columns[:, 0]
        rows[0, 1].neg_()
        biases[0, 1].neg_()
    for seed in range(3):
        assert canon.certify(turned(owner, IDS, seed), owner, IDS).passed


def test_an_owner_whose_outputs_do_nothing_is_judged() -> None:
    owner = Text()
    owner.get_parameter("head.weight").data.zero_()
    found = canon.judge(turned(owner, IDS), IDS, reference=owner).answers
    assert (found.network.answer, found.function.answer) == ("derived", "not decided")


def test_what_is_no_number_is_refused(owner: nn.Module) -> None:
    suspect = turned(owner, IDS)
    packed(suspect)[0][0][2, 0, 0, 0] = torch.nan
    with pytest.raises(UnsupportedModelError):
        align(suspect, owner, IDS)


def test_noise_alone_turns_nothing(owner: nn.Module) -> None:
    suspect = copy.deepcopy(owner)
    with torch.no_grad():
        for tensor in suspect.parameters():
            tensor.mul_(1 + 0.05 * torch.randn_like(tensor))
    assert in_owner_heads(suspect, Traced.of(owner, IDS)) is suspect


def test_by_key_they_are_not_another_network(owner: nn.Module) -> None:
    found = canon.judge(turned(owner, IDS), IDS, layout_key=canon.register(owner, IDS))
    assert found.answers.network.answer in ("derived", "not decided")
    assert found.verdict.kind == "inconclusive" or found.answers.network.answer == "derived"
