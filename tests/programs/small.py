"""A small network with one of each thing that a thief can write otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, fx, nn

import canon
from canon.verify import LayoutKey


class Small(nn.Module):
    """A residual block, branches that are joined, a depthwise, a grouped and a dilated kernel, a norm by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv1, self.norm1 = nn.Conv2d(16, 20, 3, padding=1, bias=False), nn.BatchNorm2d(20)
        self.conv2, self.norm2 = nn.Conv2d(20, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.left, self.right = nn.Conv2d(16, 12, 1), nn.Conv2d(16, 14, 3, padding=2, dilation=2)
        self.norm3 = nn.BatchNorm2d(26)
        self.wide, self.norm4 = nn.Conv2d(26, 24, 1, bias=False), nn.BatchNorm2d(24)
        self.depth, self.norm5 = nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False), nn.BatchNorm2d(24)
        self.narrow, self.norm6 = nn.Conv2d(24, 18, 1, bias=False), nn.BatchNorm2d(18)
        self.group = nn.Conv2d(18, 20, 3, padding=1, stride=2, groups=2)
        self.fc = nn.Linear(20, 7)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.AvgPool2d(3, 1, 1)

    def trunk(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm0(self.stem(x))))
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        x = self.relu(x + y)
        x = torch.cat([torch.relu(self.left(x)), self.right(x)], 1)
        x = nn.functional.silu(self.norm4(self.wide(self.relu(self.norm3(x)))))
        x = self.norm6(self.narrow(self.relu(self.norm5(self.depth(x)))))
        x = self.relu(self.group(x))
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc(self.trunk(x))
        return result


def example() -> Tensor:
    """An input."""
    return torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def drawn(model: nn.Module, seed: int) -> nn.Module:
    """Norms and biases that are not what they are initialised to, in float64."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.2, generator=generator)
            module.running_var.uniform_(0.6, 1.5, generator=generator)
            nn.init.uniform_(module.weight, 0.6, 1.5, generator=generator)
            nn.init.normal_(module.bias, 0, 0.2, generator=generator)
    return model.double().eval()


def network(seed: int = 0, kind: Callable[[], nn.Module] = Small) -> nn.Module:
    """A network with weights of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return drawn(kind(), seed)


@cache
def owner() -> nn.Module:
    """The owner's network."""
    return network()


@cache
def key() -> LayoutKey:
    """Its layout key."""
    return canon.register(owner(), example(), seed=3)


@cache
def hidden(seed: int = 1) -> nn.Module:
    """The owner's network after a disguise."""
    return canon.attack(owner(), example(), "mix-opseq", ratio=0.2, seed=seed).model


def gap(one: nn.Module, two: nn.Module) -> float:
    """Largest difference of outputs."""
    with torch.no_grad():
        first, second = (x[0] if isinstance(x, tuple) else x for x in (one(example()), two(example())))
        return float((first - second).abs().max())


__all__ = ["Small", "drawn", "example", "fx", "gap", "hidden", "key", "network", "owner"]
