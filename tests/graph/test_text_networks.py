"""Networks over tokens and sequences: what is free keeps the function under every rewrite, what is pinned says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from canon.graph import arguments, probes, trace
from canon.graph.outline import seen_share
from canon.graph.tensors import tensor_names
from canon.verify.coverage import used_tensors
from tests.networks import Net
from tests.preservation import check_preserved, randomize


class Turned(nn.Module):
    """A linear layer with its weight stored the other way around, as GPT-2 has it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], -1)


def _branches(net: Any, x: Tensor) -> Tensor:
    if x.sum().shape == (1,):  # a branch that torch.fx cannot take: the slow front end must
        return x
    gate, up = net.both(x).split(net.both.out_features // 2, dim=-1)
    result: Tensor = net.down(F.silu(gate) * up)
    return result


def _sliced(net: Any, x: Tensor) -> Tensor:
    if bool(x.ndim == 7):
        return x
    both = net.both(x)
    half = both.shape[-1] // 2
    result: Tensor = net.down(both[..., :half] * torch.tanh(both[..., half:]))
    return result


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, **options)
    return nn.Sequential(nn.Linear(5, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3))


def recurrent(kind: str, **options: Any) -> nn.Module:
    directions = 2 if options.get("bidirectional") else 1
    return Net(
        lambda net, x: net.o(net.r(F.relu(net.i(x)))[0][:, -1]),
        i=nn.Linear(5, 6), r=getattr(nn, kind)(6, 7, batch_first=True, **options), o=nn.Linear(7 * directions, 3),
    )  # fmt: skip


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "turned": (
        lambda: Net(lambda net, x: net.b(F.gelu(net.a(x))), a=Turned(5, 9), b=Turned(9, 3)),
        ("a",),
    ),
    "product with a matrix": (
        lambda: Net(lambda net, x: net.b(F.relu(x @ net.w)), w=nn.Parameter(torch.empty(5, 9)), b=nn.Linear(9, 3)),
        ("w",),
    ),
    "gated": (
        lambda: Net(
            lambda net, x: net.c(F.silu(net.a(x)) * net.b(x)), a=nn.Linear(5, 9), b=nn.Linear(5, 9), c=nn.Linear(9, 3)
        ),
        ("a",),
    ),
    "lstm": (lambda: recurrent("LSTM"), ("i", "r.weight_ih_l0")),
    "gru": (lambda: recurrent("GRU"), ("i", "r.weight_ih_l0")),
    "rnn": (lambda: recurrent("RNN", nonlinearity="relu"), ("i", "r.weight_ih_l0")),
    "lstm without biases": (lambda: recurrent("LSTM", bias=False), ("i", "r.weight_ih_l0")),
    "two layers": (lambda: recurrent("LSTM", num_layers=2), ("i", "r.weight_ih_l0", "r.weight_ih_l1")),
    "both directions": (
        lambda: recurrent("GRU", bidirectional=True),
        ("i", "r.weight_ih_l0", "r.weight_ih_l0_reverse"),
    ),
    "what is left": (
        lambda: Net(
            lambda net, x: net.o(net.r(net.i(x))[1][0][-1]),
            i=nn.Linear(5, 6), r=nn.LSTM(6, 7, batch_first=True), o=nn.Linear(7, 3),
        ),
        ("i", "r.weight_ih_l0"),
    ),
    "encoder": (encoder, ("1.layers.0.linear1", "1.layers.1.linear1")),
    "encoder, norm first": (
        lambda: encoder(norm_first=True, activation="gelu"),
        ("1.layers.0.linear1", "1.layers.1.linear1"),
    ),
    "attention alone": (
        lambda: Net(
            lambda net, x: net.o(F.relu(net.f(net.a(net.i(x), net.i(x), net.i(x))[0]))),
            i=nn.Linear(5, 8), a=nn.MultiheadAttention(8, 2, batch_first=True), f=nn.Linear(8, 6), o=nn.Linear(6, 3),
        ),
        ("f",),
    ),
    "halves by their size": (lambda: Net(_branches, both=nn.Linear(5, 12), down=nn.Linear(6, 3)), ()),
    "halves by slices": (lambda: Net(_sliced, both=nn.Linear(5, 12), down=nn.Linear(6, 3)), ("both",)),
}  # fmt: skip


def seen(model: nn.Module, example: Any) -> float:
    sizes = {name: tensor.numel() for name, tensor in tensor_names(model)[0].items()}
    return seen_share(trace(model, example), sizes, used_tensors(model, example))


@pytest.mark.parametrize("name", CASES)
def test_free_spaces_keep_the_function(name: str) -> None:
    build, free = CASES[name]
    model = randomize(build())
    example = torch.randn((2, 4, 5), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    graph = check_preserved(model, example)
    if name not in ("halves by their size", "halves by slices"):
        assert tuple(space.name for space in graph.free) == free
    assert seen(model, example) == 1


def test_signs_of_the_up_branch_are_free() -> None:
    model = randomize(CASES["gated"][0]())
    graph = trace(model, torch.zeros(2, 4, 5, dtype=torch.float64))
    assert len(graph.signed_taps & set(graph.space_taps(graph.free[0]))) == 1


def words(norm: bool = False) -> nn.Module:
    return Net(
        lambda net, ids: net.o(F.relu(net.a(net.n(net.e(ids)) if norm else net.e(ids)))).mean(1),
        e=nn.Embedding(40, 6), n=nn.LayerNorm(6), a=nn.Linear(6, 8), o=nn.Linear(8, 3),
    )  # fmt: skip


def test_what_is_in_an_embedding_is_channels() -> None:
    ids = torch.arange(12).view(3, 4)
    assert [space.name for space in check_preserved(randomize(words()), ids).free] == ["e", "a"]
    graph = check_preserved(randomize(words(norm=True)), ids)
    assert [space.name for space in graph.free] == ["a"]
    assert "layer_norm" in str(graph.space_named("e").rigid)
    assert "n.weight" not in graph.held, "a norm's weights move with the channels"


def test_tokens_of_zeros_are_spread_over_the_vocabulary() -> None:
    given = arguments(words(), torch.zeros(3, 4, dtype=torch.int64))
    assert isinstance(given, Tensor)
    assert given.min() == 0
    assert given.max() == 39
    drawn = [call[0] for call in probes(given, 12)]
    assert len({tuple(row.tolist()) for ids in drawn for row in ids}) == 12
    kept = torch.arange(20).view(4, 5)
    assert arguments(words(), kept) is kept
