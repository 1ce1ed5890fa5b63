"""A network small enough to write and read hundreds of times."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

import canon


class SmallNet(nn.Module):
    """Convolutions, norms, a residual, a flatten."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        if tied:
            self.second = self.first
        self.head = nn.Linear(8 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.stem(x)))
        x = x + functional.relu(self.second(functional.relu(self.first(x))))
        x = functional.adaptive_avg_pool2d(x, 2)
        return self.head(x.view(x.size(0), -1))  # type: ignore[no-any-return]


def example() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@cache
def _models() -> tuple[nn.Module, nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallNet().eval()
        model.norm.running_mean = torch.randn(8)
    hidden = canon.attack(model, example(), ops=["nso_zero", "nso_clique", "nso_split"], ratio=0.5, seed=3).model
    return model, hidden


def small() -> nn.Module:
    import copy

    return copy.deepcopy(_models()[0])


def attacked() -> nn.Module:
    return _models()[1]
