"""A network and a dataset small enough to train in a test."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from canon import zoo
from canon.watermarks import Dataset, TrainOptions

QUICK = TrainOptions(epochs=40, batch_size=32, cooldown=1, accuracy_goal=0.9)


class SmallNet(nn.Module):
    """Three convolutions with norms and a classifier; wide enough for a QR code."""

    def __init__(self, extra: int = 0) -> None:
        super().__init__()
        first, second, third = 32 + extra, 64 + extra, 128 + extra
        self.conv1 = nn.Conv2d(3, first, 3, stride=2, padding=1)
        self.norm1 = nn.BatchNorm2d(first)
        self.conv2 = nn.Conv2d(first, second, 3, stride=2, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(second)
        self.conv3 = nn.Conv2d(second, third, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(third)
        self.fc = nn.Linear(third, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(images)))
        x = torch.relu(self.norm2(self.conv2(x)))
        x = torch.relu(self.norm3(self.conv3(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def small_net(seed: int = 0, extra: int = 0) -> SmallNet:
    """An untrained network that depends on the seed alone, its hidden layers `extra` wider."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallNet(extra).eval()


def small_digits(train: int = 480, test: int = 120) -> Dataset:
    """A part of the digits at 16×16."""
    return zoo.dataset("digits").limited(train, test).resized(16)
