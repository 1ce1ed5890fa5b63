"""Weights that are put the other way around in the forward pass, `x @ W.T`: maps like any linear layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import canon

WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "T": lambda x, w: x @ w.T,
    "mT": lambda x, w: x @ w.mT,
    "t": lambda x, w: torch.mm(x, w.t()),
    "transpose": lambda x, w: torch.matmul(x, w.transpose(-1, -2)),
    "permute": lambda x, w: x @ w.permute(1, 0),
    "twice": lambda x, w: nn.functional.linear(x, w.T.T),
    "another float type": lambda x, w: (x.double() @ w.double().T).float(),
    "float": lambda x, w: nn.functional.linear(x.float(), w.float().contiguous()),
    "swapaxes": lambda x, w: x @ w.swapaxes(0, 1),
}


class Turned(nn.Module):
    """Two layers; the first one's weight is read as told."""

    def __init__(self, way: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.way = way
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(8, 16, bias=False), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.way(x, self.first.weight))
        return hidden @ self.second.weight.T + self.second.bias


X = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_turned_weight_is_a_map(way: str) -> None:
    model = Turned(WAYS[way]).eval()
    graph = canon.trace(model, X)
    assert [linear.weight for linear in graph.maps] == ["first.weight", "second.weight"]
    assert [space.width for space in graph.free] == [16]
    attacked = canon.attack(model, X, ["nso_clique", "nso_split"], ratio=0.5).model
    with torch.no_grad():
        assert torch.allclose(attacked(X), model(X), atol=1e-5)
    assert attacked.get_parameter("first.weight").shape[0] > 16
    recovered = canon.recover(attacked, X).model
    assert canon.certify(recovered, model, X).passed


OTHERWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "summed": lambda x, w: x @ w.T + w.T.sum(0),
    "multiplied": lambda x, w: x @ (w.T * 2),
    "written to in another type": lambda x, w: x @ w.to(torch.float32).mul_(1.0).T,
    "whole numbers": lambda x, w: x @ w.to(torch.int64).float().T,
    "stays": lambda x, w: x @ w.permute(0, 1).T,
    "cut": lambda x, w: x @ torch.cat([w.T[:, :8], w.T[:, 8:]], 1),
}


@pytest.mark.parametrize("way", sorted(OTHERWISE))
def test_a_turned_weight_that_is_used_otherwise_pins(way: str) -> None:
    """Whatever else is done with it, nothing may be changed that would change what the model computes."""
    assert not canon.trace(Turned(OTHERWISE[way]).eval(), X).free
