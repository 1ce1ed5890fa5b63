"""A common start, or theft? Small networks that learn the digits, in minutes.

An owner's network, networks that were trained apart from the same first weights, strangers, and copies that were
trained on, changed or disguised; and a family: a public model, an owner's and innocents' that were fine-tuned from it,
and thieves' copies of the owner's. Everybody is located by the owner's model and by its robust layout key. `changed`,
`shared`, `added` and `learned` are those of `canon.containment.location.Start`; `updates` is the cosine of what was
added to the public model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon import zoo
from canon.attacks import attack
from canon.attacks.after import parse
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet
from canon.containment import locate
from canon.verify import register
from canon_benchmarks import subjects
from canon_benchmarks.cases import Start

EPOCHS: Final = 12
RATES: Final = {"adamw": 1e-3, "sgd": 0.05, "slow sgd": 0.01}
NOISE: Final = 77_777
"""Seed of noise: another than that of first weights, which would be drawn from the same stream."""

FIGURES: Final = ("changed", "shared", "added", "learned")
"""What is kept of `canon.containment.location.Start`."""

APART: Final = (2, 3, 4, 5)
"""Orders of the images for those who learn apart."""

CHANGES: Final = ("noise:relative=0.2", "round=8", "round=4", "prune=0.3")


def perceptron() -> nn.Module:
    """Four linear layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip


def convolutions() -> nn.Module:
    """Four convolutions with norms, a mean, and a linear layer."""
    layers = subjects.convolutions((24, 1), (32, 1), (48, 2), (48, 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))


class Block(nn.Module):
    """Two convolutions with norms, beside what they read."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.beside = nn.Identity() if before == width else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """What a block computes."""
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.beside(x))


def residual() -> nn.Module:
    """A small residual network."""
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), Block(24, 24, 1), Block(24, 40, 2),
        Block(40, 40, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10),
    )  # fmt: skip


NETWORKS: Final[dict[str, Callable[[], nn.Module]]] = {
    "perceptron": perceptron,
    "convolutions": convolutions,
    "residual": residual,
}


class Classroom:
    """One network, one way to learn."""

    def __init__(self, network: str, optimiser: str) -> None:
        self.network = network
        self.make, self.optimiser, self.rate = NETWORKS[network], optimiser, RATES[optimiser]
        data = zoo.dataset("digits").resized(8)
        self.images, self.labels = data.images_at(data.train_images, "cpu"), data.train_labels

    @property
    def example(self) -> Tensor:
        """Inputs."""
        return self.images[:2]

    def first_weights(self, seed: int) -> nn.Module:
        """A network that has learned nothing."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make().eval()

    def learn(self, model: nn.Module, seed: int, epochs: int = EPOCHS, share: float = 1.0, part: int = 0) -> nn.Module:
        """A copy that saw the images, or every second one of them, in the order of a seed; at a share of the rate."""
        images, labels = (x if part == 0 else x[part - 1 :: 2] for x in (self.images, self.labels))
        model, order = copy.deepcopy(model).train(), torch.Generator().manual_seed(seed)
        rate = share * self.rate
        optimiser: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), rate)
        if self.optimiser != "adamw":
            optimiser = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-4)
        for _ in range(epochs):
            for chosen in torch.randperm(len(images), generator=order).split(64):
                if len(chosen) > 1:
                    optimiser.zero_grad()
                    functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
                    optimiser.step()
        return model.eval()

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Share of the training images that are classified rightly."""
        return round(float((model(self.images).argmax(1) == self.labels).double().mean()), 3)


def relatives(room: Classroom) -> Iterator[tuple[str, nn.Module, nn.Module, nn.Module | None]]:
    """Who, the suspect, the owner's model, and the public ancestor if there is one."""
    start = room.first_weights(0)
    owner = room.learn(start, 1)
    for seed in APART:
        yield "same first weights, trained apart", room.learn(start, seed), owner, None
    yield "stranger", room.learn(room.first_weights(9), 9), owner, None
    yield "copy, two epochs at a tenth of the rate", room.learn(owner, 7, 2, 0.1), owner, None
    yield "copy, two epochs at a third of the rate", room.learn(owner, 7, 2, 1 / 3), owner, None
    yield "copy, two epochs", room.learn(owner, 7, 2), owner, None
    yield "copy, five epochs", room.learn(owner, 7, 5), owner, None
    copied = Classroom(room.network, "adamw").learn(owner, 7, 2, 0.3)
    yield "copy, two epochs of AdamW at a rate of 0.0003", copied, owner, None
    copied = Classroom(room.network, "slow sgd").learn(owner, 7, 2, 0.5)
    yield "copy, two epochs of SGD at a rate of 0.005", copied, owner, None
    hidden = attack(owner, room.example, "mix-opseq", ratio=0.2).model
    yield "copy, disguised, two epochs at a third of the rate", room.learn(hidden, 7, 2, 1 / 3), owner, None
    for change in CHANGES:
        yield f"copy, {change}", parse(change).apply(owner, torch.Generator().manual_seed(NOISE)), owner, None
    public = room.learn(start, 4, part=2)
    owner = room.learn(public, 5, 4, 0.5, part=1)
    yield "family: innocent, the owner's images", room.learn(public, 6, 4, 0.5, part=1), owner, public
    yield "family: innocent, other images", room.learn(public, 6, 4, 0.5, part=2), owner, public
    yield "family: thief, one mild epoch", room.learn(owner, 7, 1, 0.05, part=1), owner, public
    yield "family: the public model", public, owner, public


def measure_start(case: Start, setup: Setup, sheet: Sheet) -> None:
    """Everybody of one classroom."""
    room = Classroom(case.network, case.optimiser)
    example, keys, everybody = room.example, {}, []
    for who, suspect, owner, public in relatives(room):
        if id(owner) not in keys:
            keys[id(owner)] = register(owner, example, robust=True)
        row: dict[str, Any] = {"who": who, "accuracy": room.accuracy(suspect)}
        for by, anchor in (("model", owner), ("robust key", keys[id(owner)])):
            found = locate(suspect, anchor, example)
            told: dict[str, Any] = {"answer": found.answer, "deep": round(found.deep, 4)}
            if found.start is not None:
                figures = {name: float(getattr(found.start, name)) for name in FIGURES}
                told |= {name: round(value, 5) for name, value in figures.items() if math.isfinite(value)}
            if public is not None:
                aware = locate(suspect, anchor, example, ancestors=(public,))
                told |= {"with_ancestor": aware.answer, "updates": round(aware.ancestors[0].cosine, 3)}
            row[by] = told
        everybody.append(row)
        sheet.note(everybody=everybody)
