"""Heads are found by what attention does with numbers, and nothing is said of what is not understood."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from canon.graph.heads import attention_layers
from canon.graph.recorded import record
from canon_benchmarks.families import FAMILIES, build

WIDTH, HEADS = 12, 3


class Written(nn.Module):
    """Attention as people write it by hand, with one packed map, and something done to its parts."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.packed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(HEADS, 1, 1))
        self.change = change
        self.eval()

    def forward(self, x: Tensor) -> Any:
        shape = *x.shape[:2], HEADS, WIDTH // HEADS
        packed = self.packed(x)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in packed.chunk(3, -1))
        if self.change == "norms":
            q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])
        if self.change == "function of values":
            v = v.relu()
        scores = q @ k.transpose(-2, -1) / 2
        if self.change == "bias by head":
            scores = scores + self.bias
        if self.change == "mixed heads":
            scores = scores.mean(1, keepdim=True) + scores
        shares = scores.softmax(-1)
        mixed = (shares @ v).transpose(1, 2).flatten(2)
        if self.change == "function of heads":
            mixed = F.gelu(mixed)
        result = self.out(mixed)
        if self.change == "shares shown":
            return result, shares
        return (result, v) if self.change == "values shown" else result


def test_rows_of_a_packed_map() -> None:
    (found,) = attention_layers(Written(), torch.randn(2, 5, WIDTH))
    each = torch.arange(WIDTH).view(HEADS, -1)
    assert [part.index.tolist() for part in (found.query, found.key, found.value, found.output)] == [
        each.tolist(), (each + WIDTH).tolist(), (each + 2 * WIDTH).tolist(), each.tolist()
    ]  # fmt: skip
    assert (found.query.weight, found.value.bias, found.output.axis) == ("packed.weight", "packed.bias", 1)
    assert found.movable
    assert found.loose.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("change", ["function of values", "function of heads", "values shown", "mixed heads"])
def test_what_sees_single_entries_is_left_alone(change: str) -> None:
    assert attention_layers(Written(change), torch.randn(1, 5, WIDTH)) == ()


def test_norms_of_queries_leave_values_free() -> None:
    (found,) = attention_layers(Written("norms"), torch.randn(1, 5, WIDTH))
    assert found.movable
    assert not len(found.loose)
    assert not len(found.pairs)


@pytest.mark.parametrize("change", ["bias by head", "shares shown"])
def test_heads_stay_where_each_has_something_of_its_own(change: str) -> None:
    (found,) = attention_layers(Written(change), torch.randn(1, 5, WIDTH))
    assert not found.movable


def test_one_position_does_not_show_what_positions_do() -> None:
    (found,) = attention_layers(Written(), torch.randn(1, 1, WIDTH))
    assert not len(found.loose)


@pytest.mark.parametrize("weights", [False, True])
def test_layers_of_torch(weights: bool) -> None:
    class Across(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(WIDTH, HEADS)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            result: Tensor = self.layer(x, y, y, need_weights=weights)[0]
            return result

    (found,) = attention_layers(Across().eval(), (torch.randn(4, 2, WIDTH), torch.randn(5, 2, WIDTH)))
    assert (found.heads, found.value.weight, int(found.value.index[0, 0])) == (HEADS, "layer.in_proj_weight", 2 * WIDTH)


@pytest.mark.parametrize(
    ("family", "layers", "groups", "loose", "pairs", "movable"),
    [
        ("GPT-2", 2, 4, 8, 0, True),
        ("GPT-NeoX", 2, 4, 6, 1, True),  # packed head by head, some entries turned by positions
        ("Mistral", 2, 2, 0, 4, True),
        ("Qwen3", 2, 2, 0, 0, True),
        ("GPT-J", 2, 4, 4, 2, True),  # neighbours are turned
        ("T5", 6, 4, 8, 0, False),  # positions add to the scores of each head
        ("ALBERT", 1, 4, 8, 0, True),  # called twice
        ("OLMo 2", 0, 0, 0, 0, False),  # norms over all heads
    ],
)
def test_families(family: str, layers: int, groups: int, loose: int, pairs: int, movable: bool) -> None:
    found = attention_layers(*build(FAMILIES[family]))
    assert len(found) == layers
    for one in found:
        assert (one.groups, len(one.loose), len(one.pairs), one.movable) == (groups, loose, pairs, movable)


def test_what_is_made_from_no_tensor_is_known_in_a_recording() -> None:
    class Places(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.arange(3)

    added = next(n for n in record(Places().eval(), (torch.zeros(3),)).graph.nodes if n.name == "add")
    assert "arange" in str(added.args[1])
