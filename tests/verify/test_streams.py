"""A transformer whose residual stream is permuted computes the same, and is not called another network."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import canon

WIDTH = 24


class Text(nn.Module):
    """Embeddings, layers with norms in front that add to a stream, and a head."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.table = nn.Embedding(40, WIDTH)
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
            self.up = nn.ModuleList(nn.Linear(WIDTH, 64) for _ in range(2))
            self.down = nn.ModuleList(nn.Linear(64, WIDTH) for _ in range(2))
            self.head = nn.Linear(WIDTH, 40, bias=False)
            for norm in self.norms:
                nn.init.uniform_(norm.weight, 0.5, 1.5)  # type: ignore[arg-type]
        self.double().eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for norm, up, down in zip(self.norms[:2], self.up, self.down, strict=True):
            x = x + down(torch.nn.functional.gelu(up(norm(x))))
        result: Tensor = self.head(self.norms[2](x))
        return result


def _permuted(model: nn.Module, order: Tensor) -> nn.Module:
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            axis = (
                0 if name.startswith(("norms", "down")) else None if name.startswith("up") and tensor.ndim == 1 else 1
            )
            if axis is not None:
                tensor.copy_(tensor.index_select(axis, order).clone())
    return model


@pytest.mark.parametrize("by_key", [False, True], ids=["reference", "key"])
def test_the_same_function_is_no_strangers(by_key: bool) -> None:
    owner, ids = Text(), torch.arange(12).reshape(2, 6)
    suspect = _permuted(owner, torch.randperm(WIDTH, generator=torch.Generator().manual_seed(1)))
    assert torch.allclose(suspect(ids), owner(ids)), "the same function"
    held = {"layout_key": canon.register(owner, ids)} if by_key else {"reference": owner}
    found = canon.judge(suspect, ids, **held)
    assert found.answers.function.answer == "agree"
    assert found.answers.network.answer != "unrelated", found.answers.network.reason
    assert found.verdict.kind != "refuted"
    stranger = canon.judge(Text(5), ids, **held).answers.network.answer
    assert stranger == ("not decided" if by_key else "unrelated"), "a key does not tell a stranger from a turned stream"
