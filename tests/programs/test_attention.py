"""Attention in any program: fused or separate projections, products in any spelling, layers of torch.nn."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import canon
from canon.verify import LayoutKey
from tests.preservation import randomize

WIDTH, HEADS = 24, 3
EXAMPLE = torch.randn(1, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Separate(nn.Module):
    """A block with attention, written with one layer each for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(6, WIDTH), nn.LayerNorm(WIDTH)
        self.project()
        self.up, self.down, self.head = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH), nn.Linear(WIDTH, 4)

    def project(self) -> None:
        """The layers around attention."""
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values by head."""
        return tuple(self.split(layer(x)) for layer in (self.q, self.k, self.v))

    @staticmethod
    def split(x: Tensor) -> Tensor:
        """A projection by head."""
        return x.view(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention."""
        return functional.scaled_dot_product_attention(q, k, v)

    def mixed(self, x: Tensor) -> Tensor:
        """What the block adds."""
        return self.o(self.attend(*self.heads(x)).transpose(1, 2).reshape(x.shape))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """The whole network."""
        x = self.embed(x)
        x = x + self.mixed(self.norm(x))
        result: Tensor = self.head((x + self.down(functional.gelu(self.up(x)))).mean(1))
        return result


class Fused(Separate):
    """One layer for all three, cut as ViTs do."""

    def project(self) -> None:
        """The layers around attention."""
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values by head."""
        whole: Tensor = self.qkv(x).reshape(x.shape[0], x.shape[1], 3, HEADS, -1)
        q, k, v = whole.permute(2, 0, 3, 1, 4)
        return q, k, v


class Chunked(Fused):
    """The same, cut in thirds."""

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values by head."""
        return tuple(self.split(part) for part in self.qkv(x).chunk(3, -1))


class Products(Separate):
    """Attention as products, the scale on the queries."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention."""
        return torch.matmul(functional.softmax(q * q.shape[-1] ** -0.5 @ k.transpose(2, 3), -1), v)


class Einsum(Separate):
    """Attention in sums over indices."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention."""
        shares = (torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("bhts,bhsd->bhtd", shares, v)


class Layer(Separate):
    """The layer of torch.nn."""

    def project(self) -> None:
        """The layers around attention."""
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def mixed(self, x: Tensor) -> Tensor:
        """What the block adds."""
        result: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return result


class OtherScale(Products):
    """Another function."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention."""
        return super().attend(q * 3, k, v)


class OtherOrder(Chunked):
    """Keys and values have changed places."""

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values by head."""
        q, k, v = super().heads(x)
        return q, v, k


Kind = Callable[[], Separate]


@cache
def _written(kind: Kind) -> Separate:
    """One network's numbers in a program."""
    given = randomize(Separate()).state_dict()
    packed = {end: torch.cat([given[f"{part}.{end}"] for part in "qkv"]) for end in ("weight", "bias")}
    names = {"qkv.weight": packed["weight"], "qkv.bias": packed["bias"], "attention.in_proj_weight": packed["weight"],
             "attention.in_proj_bias": packed["bias"], "attention.out_proj.weight": given["o.weight"],
             "attention.out_proj.bias": given["o.bias"]}  # fmt: skip
    model = kind().double().eval()
    model.load_state_dict({name: {**given, **names}[name] for name in model.state_dict()})
    return model


@cache
def _key(kind: Kind) -> LayoutKey:
    return canon.register(_written(kind), EXAMPLE)


def _answers(owner: Kind, suspect: nn.Module) -> list[str]:
    held: tuple[dict[str, Any], ...] = ({"reference": _written(owner)}, {"layout_key": _key(owner)})
    return [canon.judge(suspect, EXAMPLE, **given).answers.network.answer for given in held]


def _hidden(kind: Kind) -> nn.Module:
    return canon.attack(_written(kind), EXAMPLE, "mix-opseq", ratio=0.2).model


@pytest.mark.parametrize(
    ("owner", "suspect"), [(Separate, Fused), (Fused, Products), (Layer, Chunked), (Products, Layer)]
)
def test_attention_is_one_thing(owner: Kind, suspect: Kind) -> None:
    assert torch.allclose(_written(owner)(EXAMPLE), _written(suspect)(EXAMPLE))
    assert _answers(owner, _hidden(suspect)) == ["equal", "equal"]


def test_sums_over_indices_are_compared_by_outputs() -> None:
    assert _answers(Fused, _hidden(Einsum)) == ["contained", "contained"]


@pytest.mark.parametrize(("owner", "suspect"), [(Separate, OtherOrder), (Fused, OtherScale)])
def test_another_attention_is_no_other_program_of_it(owner: Kind, suspect: Kind) -> None:
    assert not set(_answers(owner, _hidden(suspect))) & {"equal", "contained"}
