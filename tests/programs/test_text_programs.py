"""Language models whose programs make their own positions: by key as by reference, with blocks and adapters added."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import canon
from canon.normal import Outline, outline_of
from tests.programs.test_branches import Adapted

WIDTH, HEADS = 24, 3


class Block(nn.Module):
    """Attention and a layer, with norms in front."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        y = self.norms[0](x)
        q, k, v = (
            layer(y).view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(heads.transpose(1, 2).reshape(batch, length, WIDTH))
        result: Tensor = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return result


class Text(nn.Module):
    """Tokens and positions, blocks, a head."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.tokens, self.positions = nn.Embedding(40, WIDTH), nn.Embedding(16, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40, bias=False)
        self.double().eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(self.norm(x))
        return result


def _adapted(model: Any) -> None:
    for block in model.blocks:
        block.q, block.v = Adapted(block.q), Adapted(block.v)


def _longer(model: Any) -> None:
    added = Block().double()
    for layer in (added.o, added.down):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    model.blocks.insert(1, added)


CHANGES: dict[str, Callable[[Any], None]] = {"adapters": _adapted, "a block that adds nothing": _longer}


@pytest.mark.parametrize("by_key", [False, True], ids=["reference", "key"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_was_added_does_not_hide_the_rest(name: str, by_key: bool) -> None:
    torch.manual_seed(1)
    owner, ids = Text(), torch.arange(12).reshape(2, 6)
    suspect = copy.deepcopy(canon.attack(owner, ids, "nso_clique", ratio=0.3, seed=1).model)
    CHANGES[name](suspect)
    suspect.eval()
    assert torch.allclose(suspect(ids), owner(ids)), "the same function"
    held: dict[str, Any] = {"layout_key": canon.register(owner, ids)} if by_key else {"reference": owner}
    found = canon.judge(suspect, ids, **held)
    assert found.verdict.kind == "matches", found.answers.network.reason


def test_a_larger_vocabulary_hides_nothing() -> None:
    owner, ids = Text(), torch.arange(12).reshape(2, 6)
    suspect: Any = Text(3)
    suspect.load_state_dict(owner.state_dict())
    for name, made in (("tokens", nn.Embedding(44, WIDTH)), ("head", nn.Linear(WIDTH, 44, bias=False))):
        layer: Any = made.double()
        layer.weight.data[:40] = getattr(owner, name).weight.data
        setattr(suspect, name, layer)
    assert canon.judge(suspect.eval(), ids, reference=owner).verdict.kind == "matches"
    by_key = canon.judge(suspect, ids, layout_key=canon.register(owner, ids))
    assert by_key.answers.network.answer in ("derived", "not decided"), by_key.answers.network.reason


def test_a_program_from_a_file_makes_no_large_tensors() -> None:
    outline = outline_of(Text())
    assert outline is not None
    assert Outline.unpacked(outline.packed()) == outline
    size = '"torch.arange",{"tuple":['
    assert size in outline.text
    for large in (f"{1 << 40},", "1e30,"):
        with pytest.raises(ValueError, match="too large"):
            Outline.unpacked(Outline(outline.text.replace(size, size + large)).packed())


class Counted(nn.Module):
    """Makes a tensor of a size that it works out."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(x.shape[0] * (1 << 40))[:1]


def test_sizes_that_are_worked_out_stand_in_no_key() -> None:
    outline = outline_of(Counted().eval())
    assert outline is not None
    with pytest.raises(ValueError, match="too large"):
        Outline.unpacked(outline.packed())
