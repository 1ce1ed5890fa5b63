"""Networks as people write them by hand: ResNets for CIFAR with shortcuts filled up with zeros, and a detector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

Shortcut = Callable[[Tensor, int], Tensor]
"""From a block's input and the channels that are missing to what is added to its output."""


def padded(x: Tensor, missing: int) -> Tensor:
    """Zeros on both sides."""
    return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, missing // 2, missing - missing // 2))


def multiplied(x: Tensor, missing: int) -> Tensor:
    """The same channels times zero."""
    half = functional.avg_pool2d(x, 1, 2)
    return torch.cat((half, half.mul(0)), 1)


def alike(x: Tensor, missing: int) -> Tensor:
    """As many zeros as there are channels."""
    half = functional.avg_pool2d(x, 2)
    return torch.cat((half, torch.zeros_like(half)), 1)


def counted(x: Tensor, missing: int) -> Tensor:
    """Zeros of a given size."""
    half = x[:, :, ::2, ::2]
    return torch.cat((half, half.new_zeros(half.size(0), missing, half.size(2), half.size(3))), 1)


class _Block(nn.Module):
    def __init__(self, given: int, made: int, shortcut: Shortcut) -> None:
        super().__init__()
        stride = 1 if given == made else 2
        self.conv1, self.norm1 = nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made)
        self.conv2, self.norm2 = nn.Conv2d(made, made, 3, 1, 1, bias=False), nn.BatchNorm2d(made)
        self.shortcut, self.missing = shortcut, made - given

    def forward(self, x: Tensor) -> Tensor:
        made = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(made + (self.shortcut(x, self.missing) if self.missing else x))


def resnet20(shortcut: Shortcut) -> nn.Module:
    """The small network for CIFAR-10 of the residual networks' authors."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    for stage, made in enumerate((16, 32, 64)):
        for block in range(3):
            layers.append(_Block(made if block or not stage else made // 2, made, shortcut))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _layer(given: int, made: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(given, made, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(made), nn.SiLU())


class _Parted(nn.Module):
    """Half of the channels goes on, through blocks whose outputs are all kept."""

    def __init__(self, given: int, made: int, blocks: int, *, sizes: bool, add: bool = True) -> None:
        super().__init__()
        self.kept, self.sizes, self.add = made // 2, sizes, add
        self.first, self.last = _layer(given, made), _layer((2 + blocks) * self.kept, made)
        self.blocks = nn.ModuleList(
            nn.Sequential(_layer(self.kept, self.kept, 3), _layer(self.kept, self.kept, 3)) for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        whole = self.first(x)
        kept = list(whole.split((self.kept, self.kept), 1) if self.sizes else whole.chunk(2, 1))
        for block in self.blocks:
            kept.append(kept[-1] + block(kept[-1]) if self.add else block(kept[-1]))
        result: Tensor = self.last(torch.cat(kept, 1))
        return result


class _Pooled(nn.Module):
    """Maxima over three neighbourhoods beside the value itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last, self.pool = _layer(width, width // 2), _layer(2 * width, width), nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        values = [self.first(x)]
        for _ in range(3):
            values.append(self.pool(values[-1]))
        result: Tensor = self.last(torch.cat(values, 1))
        return result


class _Boxes(nn.Module):
    """Boxes as means of distributions, and classes, at every place of two maps."""

    def __init__(self, widths: Sequence[int], classes: int = 20, bins: int = 8) -> None:
        super().__init__()
        self.classes, self.bins = classes, bins
        self.boxes = nn.ModuleList(self._branch(width, 4 * bins) for width in widths)
        self.labels = nn.ModuleList(self._branch(width, classes) for width in widths)
        self.mean = nn.Conv2d(bins, 1, 1, bias=False)

    @staticmethod
    def _branch(width: int, made: int) -> nn.Sequential:
        return nn.Sequential(_layer(width, 32, 3), _layer(32, 32, 3), nn.Conv2d(32, made, 1))

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        told = [torch.cat((b(x), c(x)), 1) for b, c, x in zip(self.boxes, self.labels, maps, strict=True)]
        flat = torch.cat([x.view(x.shape[0], 4 * self.bins + self.classes, -1) for x in told], 2)
        box, label = flat.split((4 * self.bins, self.classes), 1)
        batch, _, places = box.shape
        sides = self.mean(box.view(batch, 4, self.bins, places).transpose(2, 1).softmax(1)).view(batch, 4, places)
        return torch.cat((sides, label.sigmoid()), 1)


class Detector(nn.Module):
    """As YOLO's are: a backbone of parted blocks, two maps that are joined, a head of boxes and classes.

    Args:
        sizes: Whether halves are split off by numbers.
        width: Channels of the first layer.
    """

    def __init__(self, *, sizes: bool, width: int = 16) -> None:
        super().__init__()
        w = width
        self.stem = nn.Sequential(
            _layer(3, w, 3, 2), _layer(w, 2 * w, 3, 2), _Parted(2 * w, 2 * w, 1, sizes=sizes),
            _layer(2 * w, 4 * w, 3, 2), _Parted(4 * w, 4 * w, 2, sizes=sizes),
        )  # fmt: skip
        self.deep = nn.Sequential(_layer(4 * w, 8 * w, 3, 2), _Parted(8 * w, 8 * w, 1, sizes=sizes), _Pooled(8 * w))
        self.wide = nn.Upsample(scale_factor=2)
        self.joined = _Parted(12 * w, 4 * w, 1, sizes=sizes, add=False)
        self.down, self.again = _layer(4 * w, 4 * w, 3, 2), _Parted(12 * w, 8 * w, 1, sizes=sizes, add=False)
        self.head = _Boxes((4 * w, 8 * w))

    def forward(self, x: Tensor) -> Tensor:
        """Boxes and classes, `batch x (4 + classes) x places`."""
        fine = self.stem(x)
        deep = self.deep(fine)
        first = self.joined(torch.cat((self.wide(deep), fine), 1))
        result: Tensor = self.head((first, self.again(torch.cat((self.down(first), deep), 1))))
        return result


PATTERNS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "resnet20, padded": lambda: resnet20(padded),
    "resnet20, times zero": lambda: resnet20(multiplied),
    "resnet20, zeros_like": lambda: resnet20(alike),
    "resnet20, new_zeros": lambda: resnet20(counted),
    "detector, chunk": lambda: Detector(sizes=False),
    "detector, split": lambda: Detector(sizes=True),
}
"""By name: a network that is built anew."""
