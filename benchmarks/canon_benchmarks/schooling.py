"""Where owners, strangers, innocents and thieves learn: one dataset, and a way to train that keeps what it made.

Small data is learned with AdamW in a few passes. On CIFAR the network has a stem for small images, images are shifted
and mirrored, and SGD runs one cycle.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon import zoo
from canon.watermarks import Dataset
from canon_benchmarks.subjects import convolutions

EPOCHS: Final = {"digits": 20, "mnist": 2, "cifar10": 20, "cifar100": 20}
BATCH: Final = {"digits": 64, "mnist": 128, "cifar10": 256, "cifar100": 256}
RATE: Final = {"digits": 1e-3, "mnist": 1e-3, "cifar10": 0.1, "cifar100": 0.1}
"""The largest rate: of AdamW for small data, of SGD on CIFAR."""

SHIFT: Final = 4
"""Pixels that an image is shifted by at most."""

APART: Final = "same first weights"
"""Trained apart from the first weights of the owner's model."""

TUNED: Final = {
    "innocent: other classes": ("ancestor", "other", 5, 0.02),
    "innocent: half the classes": ("ancestor", "half", 5, 0.02),
    "innocent: same data": ("ancestor", "owner", 5, 0.02),
    "thief: one mild epoch": ("owner", "owner", 1, 0.002),
    "thief: five harsh epochs": ("owner", "owner", 5, 0.02),
}
"""By who it is: what it starts from, on which data, how many epochs, at which rate."""

COPIES: Final = {
    "copy: disguised": (),
    "copy: disguised, 20% noise": ("noise:relative=0.2",),
    "copy: disguised, 2% of the spread": ("noise:absolute=0.02",),
    "copy: disguised, 8 bits": ("round=8",),
    "copy: disguised, 30% pruned": ("prune=0.3",),
    "copy: disguised, two epochs": ("finetune",),
    "copy: two harsh epochs, disguised": ("before",),
}
"""By who it is: what is done to the owner's model besides the disguise."""

UNLIKE: Final = ("stranger", APART)
WHO: Final = (*UNLIKE, *TUNED, *COPIES)


@dataclass(frozen=True)
class School:
    """A dataset, a device, and a folder of what was trained already."""

    dataset: str
    folder: Path | None
    device: str
    cache: Path

    def example(self) -> Tensor:
        """An input."""
        return torch.zeros(1, 3, zoo.DEFAULT_SIZE, zoo.DEFAULT_SIZE)

    def first_weights(self, model: str, start: int) -> nn.Module:
        """A model that has learned nothing."""
        return build(model, _data(self).classes, start, small=self._augmented).eval()

    def trained(self, model: str, *, start: int, order: int, only: str = "owner") -> nn.Module:
        """A model trained from its first weights `start`, seeing the images in the order `order`."""
        name = f"{self.dataset}-{model}-{start}-{order}-{only}"

        def learn() -> nn.Module:
            network = self.first_weights(model, start)
            return self._learn(network, only, EPOCHS[self.dataset], RATE[self.dataset], order)

        return self._kept(name, self.first_weights(model, start), learn)

    def ancestor(self, model: str) -> nn.Module:
        """The public model: trained on the other half of the images."""
        return self.trained(model, start=0, order=0, only="other half")

    def owner(self, model: str) -> nn.Module:
        """The owner's model: on CIFAR made from the public one, else trained from the start."""
        if not self._augmented:
            return self.trained(model, start=0, order=0)
        like, name = self.first_weights(model, 0), f"{self.dataset}-{model}-owner"
        return self._kept(name, like, lambda: self.tuned(self.ancestor(model), "owner", 5, 0.02, seed=1))

    def tuned(self, model: nn.Module, only: str, epochs: int, rate: float, *, seed: int) -> nn.Module:
        """A copy, trained on."""
        return self._learn(copy.deepcopy(model), only, epochs, rate, seed)

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Share of test images that are classified rightly."""
        data, model = _data(self), copy.deepcopy(model).to(self.device).eval()
        right = 0
        for images, labels in zip(data.test_images.split(500), data.test_labels.split(500), strict=True):
            right += int((model(images.to(self.device)).argmax(1).cpu() == labels).sum())
        return round(right / len(data.test_labels), 4)

    @property
    def _augmented(self) -> bool:
        return self.dataset.startswith("cifar")

    def _kept(self, name: str, like: nn.Module, learn: Callable[[], nn.Module]) -> nn.Module:
        path = self.cache / f"{name.replace(' ', '_')}.pt"
        if path.exists():
            like.load_state_dict(torch.load(path, weights_only=True))
            return like.eval()
        made = learn()
        self.cache.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        torch.save({key: value.cpu() for key, value in made.state_dict().items()}, partial)
        partial.replace(path)
        return made

    def _learn(self, model: nn.Module, only: str, epochs: int, rate: float, seed: int) -> nn.Module:
        images, labels = part(_data(self), only)
        images, labels = images.to(self.device), labels.to(self.device)
        model = model.to(self.device).train().requires_grad_(True)
        batch = BATCH[self.dataset]
        steps = epochs * -(-len(images) // batch)
        if self._augmented:
            optimiser: torch.optim.Optimizer = torch.optim.SGD(
                model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True
            )
        else:
            optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
        plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps + 1, pct_start=0.2)
        order = torch.Generator().manual_seed(seed)
        cuda = self.device.startswith("cuda")
        with torch.random.fork_rng(devices=[0] if cuda else []):
            torch.manual_seed(seed)
            for _ in range(epochs):
                for chosen in torch.randperm(len(images), generator=order).to(self.device).split(batch):
                    if len(chosen) < 2:
                        continue
                    given = augmented(images[chosen]) if self._augmented else images[chosen]
                    with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
                        loss = functional.cross_entropy(model(given), labels[chosen])
                    optimiser.zero_grad(set_to_none=True)
                    loss.backward()
                    optimiser.step()
                    plan.step()
        return model.cpu().eval()


@functools.lru_cache(maxsize=1)
def _data(school: School) -> Dataset:
    return zoo.dataset(school.dataset, school.folder)


def part(data: Dataset, only: str) -> tuple[Tensor, Tensor]:
    """Training images: the owner's half, the other half, the owner's of half the classes, or other classes."""
    images, labels = data.train_images, data.train_labels
    mine = torch.arange(len(labels)) % 2 == 0
    half = labels < data.classes // 2
    if only == "owner" and not data.name.startswith("cifar"):
        return images, labels
    chosen = {"owner": mine, "other half": ~mine, "half": mine & half, "other": ~mine & ~half}[only]
    return images[chosen], labels[chosen]


def augmented(images: Tensor) -> Tensor:
    """Mirrored at random, and shifted by up to some pixels."""
    count, _, height, width = images.shape
    flipped = torch.rand(count, device=images.device) < 0.5
    images = torch.where(flipped[:, None, None, None], images.flip(3), images)
    padded = functional.pad(images, (SHIFT,) * 4)
    down, right = (torch.randint(2 * SHIFT + 1, (count, 1, 1), device=images.device) for _ in range(2))
    rows = down + torch.arange(height, device=images.device)[None, :, None]
    columns = right + torch.arange(width, device=images.device)[None, None, :]
    index = torch.arange(count, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows, columns].permute(0, 3, 1, 2)


def build(name: str, classes: int, seed: int, *, small: bool = False) -> nn.Module:
    """A model of the zoo, or a small one of `SMALL`; `small`: a stem for images of 32 pixels."""
    if name in SMALL:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return SMALL[name](classes)
    return zoo.model(f"small:{name}" if small else name, classes=classes, seed=seed)


def plain(classes: int) -> nn.Module:
    """Six convolutions with norms, a mean, and a linear layer."""
    layers = convolutions((32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes)).eval()


def separable(classes: int) -> nn.Module:
    """A convolution, five pairs of a depthwise and a pointwise one, a mean, and a linear layer."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    before = 32
    for width, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        layers += [nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False), nn.BatchNorm2d(before)]
        layers += [nn.ReLU6(), nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)).eval()


def linear(classes: int) -> nn.Module:
    """Four linear layers."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(3 * zoo.DEFAULT_SIZE**2, 256), nn.ReLU()]
    for before, width in ((256, 256), (256, 128)):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, classes)).eval()


SMALL: Final[dict[str, Callable[[int], nn.Module]]] = {"plain": plain, "separable": separable, "linear": linear}
"""Networks that learn the digits in seconds."""
