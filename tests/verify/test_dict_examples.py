"""Examples by name and of token ids, in every public call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import canon
from canon.errors import ExampleError
from tests.preservation import scaling


class Reader(nn.Module):
    """Tokens and a mask to scores and a summary, through a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(50, 12), nn.LayerNorm(12)
        self.gate, self.up, self.down = nn.Linear(12, 20), nn.Linear(12, 20), nn.Linear(20, 12)
        self.head = nn.Linear(12, 7)

    def forward(self, ids: Tensor, mask: Tensor | None = None, *, only: bool = False) -> dict[str, Tensor]:
        x = self.table(ids)
        x = x + self.down(F.silu(self.gate(self.norm(x))) * self.up(self.norm(x)))
        if mask is not None:
            x = x * mask[..., None]
        return {"scores": self.head(x), "summary": x.mean(1)}


def reader(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Reader().eval()


EXAMPLE = {"mask": torch.ones(2, 6, dtype=torch.int64), "ids": torch.zeros(2, 6, dtype=torch.int64)}


def test_every_call_takes_a_dict() -> None:
    model = reader()
    assert [space.name for space in canon.trace(model, EXAMPLE).free] == ["gate"]
    attacked = canon.attack(model, EXAMPLE, ["nso_clique", "nso_split"], ratio=0.3).model
    recovered = canon.recover(attacked, EXAMPLE).model
    assert canon.certify(recovered, model, EXAMPLE).passed
    key = canon.register(model, EXAMPLE)
    assert canon.align(recovered, key, EXAMPLE).established
    assert canon.locate(attacked, model, EXAMPLE).coverage == 1
    for owner in ({"reference": model}, {"layout_key": key}):
        judged = canon.judge(attacked, EXAMPLE, **owner)  # type: ignore[arg-type]
        assert judged.answers.network.answer == "equal"
        assert judged.answers.function.answer == "agree"


def test_strangers_are_told_apart_by_tokens() -> None:
    judged = canon.judge(reader(1), EXAMPLE, reference=reader())
    assert judged.answers.network.answer != "equal"
    assert judged.answers.function.answer == "disagree"


def test_signs_and_scales_of_the_up_branch_are_undone() -> None:
    from canon.rewrite import rewrite

    model = reader()
    graph = canon.trace(model, EXAMPLE)
    generator = torch.Generator().manual_seed(3)
    turned: Any = rewrite(model, graph, {space.id: scaling(graph, space, generator) for space in graph.free})
    assert bool((turned.up.weight * model.up.weight < 0).any())
    certificate = canon.certify(turned, model, EXAMPLE, canonical=False)
    assert certificate.passed
    with torch.no_grad():
        turned.up.weight[3] *= -1
    assert not canon.certify(turned, model, EXAMPLE, canonical=False).passed


@pytest.mark.parametrize(
    ("example", "words"),
    [
        ({"tokens": torch.zeros(2, 6, dtype=torch.int64)}, "no input 'tokens'"),
        ({"mask": torch.ones(2, 6)}, "also needs an input 'ids'"),
        ({"ids": torch.zeros(2, 6, dtype=torch.int64), "only": True}, "only by keyword"),
        ({}, "holds no input"),
    ],
)
def test_wrong_names_are_said(example: dict[str, Any], words: str) -> None:
    with pytest.raises(ExampleError, match=words):
        canon.trace(reader(), example)
