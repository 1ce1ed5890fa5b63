"""A residual stream in another basis is the owner's network."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import canon
from canon.verify.owner_streams import in_owner_streams
from canon.verify.traced import Traced
from canon_benchmarks.families import FAMILIES, build
from tests.attacks.test_streams import IDS, WIDTH, Stream
from tests.preservation import randomize


def text(seed: int = 0, rows: int = 30) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Stream(lambda: nn.RMSNorm(WIDTH))
        made.table = nn.Embedding(rows, WIDTH)
    return randomize(made, seed).float()


@pytest.fixture(scope="module")
def owner() -> nn.Module:
    return text()


def test_a_turned_stream_is_equal(owner: nn.Module) -> None:
    suspect = canon.attack(owner, IDS, "turned_streams").model
    found = canon.judge(suspect, IDS, reference=owner)
    assert found.answers.network.answer == "equal"
    assert found.verdict.kind == "matches"
    assert any("residual streams" in note for note in found.evidence["notes"])
    assert canon.certify(suspect, owner, IDS).passed


def test_with_injected_channels_it_is_equal(owner: nn.Module) -> None:
    suspect = canon.attack(canon.attack(owner, IDS, "turned_streams").model, IDS, "mix-opseq", ratio=0.2).model
    assert canon.judge(suspect, IDS, reference=owner).answers.network.answer == "equal"


def test_with_noise_it_is_derived(owner: nn.Module) -> None:
    suspect = canon.attack(owner, IDS, "turned_streams", after=["noise:relative=0.01"]).model
    found = canon.locate(suspect, owner, IDS)
    assert found.answer == "derived"
    assert found.coverage > 0.9


@pytest.mark.parametrize("family", ["Llama", "GPT-NeoX"])
def test_turned_streams_and_heads_are_equal(family: str) -> None:
    model, example = build(FAMILIES[family])
    suspect = canon.attack(model, example, ["turned_streams", "turned_heads"]).model
    assert canon.certify(suspect, model, example).passed


def test_a_stranger_stays_as_it_is(owner: nn.Module) -> None:
    assert (
        in_owner_streams(text(5), Traced.of(owner, IDS))
        .get_parameter("table.weight")
        .equal(text(5).get_parameter("table.weight"))
    )
    assert canon.judge(text(5), IDS, reference=owner).answers.network.answer in ("unrelated", "not decided")


def test_few_rows_tell_no_basis() -> None:
    """With no more rows than channels a turn brings any embedding to any other: it is not made."""
    first, second = text(0, rows=WIDTH), text(5, rows=WIDTH)
    ids = torch.arange(WIDTH)[None]
    assert in_owner_streams(second, Traced.of(first, ids)) is second


def test_permuted_or_noisy_streams_are_left_to_alignment(owner: nn.Module) -> None:
    noisy = copy.deepcopy(owner)
    with torch.no_grad():
        for tensor in noisy.parameters():
            tensor.mul_(1 + 0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)))
    permuted = canon.attack(owner, IDS, "nso_zero", ratio=0.1).model
    for suspect in (noisy, permuted):
        assert in_owner_streams(suspect, Traced.of(owner, IDS)) is suspect
