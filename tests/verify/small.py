"""Small networks and quick training for the tests of verification."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from canon import zoo
from canon.graph import trace
from canon.rewrite import SpaceRewrite, rewrite
from tests.preservation import permutation


class TinyNet(nn.Module):
    """Convolutions with norms, a residual connection and a classifier."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(2 * width)
        self.fc = nn.Linear(2 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(images)))
        x = torch.relu(x + self.norm2(self.conv2(x)))
        x = torch.relu(self.norm3(self.conv3(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def tiny(seed: int = 0, width: int = 16) -> nn.Module:
    """An untrained network whose norms do something."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = TinyNet(width)
        for module in net.modules():
            if (
                isinstance(module, nn.BatchNorm2d)
                and module.running_mean is not None
                and module.running_var is not None
            ):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                nn.init.normal_(module.weight, 1.0, 0.3)
                nn.init.normal_(module.bias, 0.0, 0.1)
        return net.eval()


def example(seed: int = 0) -> Tensor:
    """Images that `tiny` takes."""
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def digits() -> tuple[Tensor, Tensor]:
    """Images of 8×8 and their labels."""
    data = zoo.dataset("digits").resized(8)
    return data.images_at(data.train_images, "cpu"), data.train_labels


def train(
    net: nn.Module, images: Tensor, labels: Tensor, *, seed: int, steps: int = 60, rate: float = 0.05
) -> nn.Module:
    """A trained copy."""
    generator = torch.Generator().manual_seed(seed)
    trained = copy.deepcopy(net).train()
    optimizer = torch.optim.SGD(trained.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    for _ in range(steps):
        chosen = torch.randint(len(images), (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(trained(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return trained.eval()


def disguise(model: nn.Module, inputs: Any, *, seed: int = 0, scale: bool = True) -> nn.Module:
    """The same function with channels in another order and, where that passes, of another positive scale."""
    generator = torch.Generator().manual_seed(seed)
    graph = trace(model, inputs)
    moved = rewrite(model, graph, {space.id: permutation(space, generator) for space in graph.free})
    if not scale:
        return moved
    graph = trace(moved, inputs)
    plan: dict[int, SpaceRewrite] = {}
    for space in graph.free:
        taps = [tap for tap in graph.space_taps(space) if tap not in graph.fixed_taps]
        gains: Mapping[int, Tensor] = {
            tap: torch.rand(space.width, generator=generator, dtype=torch.float64) * 1.5 + 0.5 for tap in taps
        }
        plan[space.id] = SpaceRewrite.scaling(space.width, gains)
    return rewrite(moved, graph, plan)


def largest_difference(first: nn.Module, second: nn.Module) -> float:
    """Over all tensors: the relative distance."""
    ours, theirs = first.state_dict(), second.state_dict()
    assert ours.keys() == theirs.keys(), "the models have other tensors"
    return max(
        float((ours[name].double() - theirs[name].double()).norm() / (theirs[name].double().norm() + 1e-12))
        for name in ours
    )
