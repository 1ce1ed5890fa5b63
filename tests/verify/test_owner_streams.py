"""A residual stream in another basis is the owner's network."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import canon
from canon.graph import trace
from canon.graph.experts import channel_tensors
from canon.graph.streams import streams_of
from canon.rewrite.streams import turn_stream
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


def turned_by(model: nn.Module, turn: torch.Tensor) -> nn.Module:
    """The model with its stream turned by a matrix, factors behind norms gone over to what reads them."""
    graph = trace(model, IDS)
    (stream,) = streams_of(graph)
    tensors = channel_tensors(model, graph.orders)
    ones = {name: torch.ones_like(tensors[name]) for name in stream.gains}
    return turn_stream(model, graph, stream, turn, ones)


def planes(count: int, angle: float) -> torch.Tensor:
    """Some planes of two channels turned, all else as it was."""
    turn, one = torch.eye(WIDTH, dtype=torch.float64), torch.tensor([[0.0, -angle], [angle, 0.0]]).double()
    for start in range(0, 2 * count, 2):
        turn[start : start + 2, start : start + 2] = torch.linalg.matrix_exp(one)
    return turn


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


@pytest.mark.parametrize(
    "turn",
    [
        planes(1, 0.8),
        planes(WIDTH // 2, 0.3),
        planes(WIDTH // 2, 0.05),
        torch.diag(1 - 2.0 * (torch.arange(WIDTH) % 2)),
    ],
    ids=["one plane", "a little", "very little", "signs"],
)
def test_a_turn_of_few_channels_or_a_small_one_is_equal(owner: nn.Module, turn: torch.Tensor) -> None:
    suspect = turned_by(owner, turn.double())
    assert canon.judge(suspect, IDS, reference=owner).answers.network.answer == "equal"
    assert canon.locate(suspect, owner, IDS).answer == "contained"


def test_further_rows_of_the_embedding_hide_no_turn(owner: nn.Module) -> None:
    suspect = canon.attack(owner, IDS, "turned_streams").model
    table = suspect.get_parameter("table.weight")
    more = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
    suspect.table = nn.Embedding.from_pretrained(torch.cat([table.detach(), more]))
    found = canon.locate(suspect.eval(), owner, IDS)
    assert found.answer in ("contained", "derived")
    assert found.coverage == 1.0


def test_what_all_rows_have_in_common_tells_no_basis(owner: nn.Module) -> None:
    """Rows that are nearly alike are brought to any others by some turn."""
    models = text(0), text(5)
    with torch.no_grad():
        for model in models:
            model.get_parameter("table.weight").mul_(0.05).add_(model.get_parameter("up.0.weight")[0])
    assert in_owner_streams(models[1], Traced.of(models[0], IDS)) is models[1]


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
