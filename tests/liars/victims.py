"""Networks that forgers are let loose on: small, with every kind of module that a key might point at."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from canon.watermarks import Dataset


class Victim(nn.Module):
    """Three convolutions with norms and activations as modules."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.norm1 = nn.BatchNorm2d(32)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(64)
        self.act2 = nn.PReLU(64)
        self.conv3 = nn.Conv2d(64, 128, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(128)
        self.relu3 = nn.ReLU()
        self.fc = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu1(self.norm1(self.conv1(images)))
        x = self.act2(self.norm2(self.conv2(x)))
        x = self.relu3(self.norm3(self.conv3(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def victim(seed: int = 0, pruned: bool = True) -> Victim:
    """Somebody's model, without any mark: norms as training leaves them, half the kernels of a layer pruned."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Victim()
        with torch.no_grad():
            for norm in (model.norm1, model.norm2, model.norm3):
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.normal_(-0.3, 0.3)
                norm.get_buffer("running_mean").normal_(0, 0.3)
                norm.get_buffer("running_var").uniform_(0.2, 1.0)
            model.norm3.weight.mul_((torch.rand(128) < 0.7) * 2 - 1)
            if pruned:
                model.conv3.weight.mul_(torch.rand(128, 64, 1, 1) < 0.5)
    return model.eval()


def images(seed: int = 0, count: int = 64) -> Dataset:
    """Random images with labels: a forger needs no better ones."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randn(count, 3, 16, 16, generator=generator)
    labels = torch.arange(count) % 10
    return Dataset("noise", 10, pictures, labels, pictures[:10], labels[:10])
