"""A common start, or theft? Small networks that learn the digits, in minutes.

An owner's network, networks that were trained apart from the same first weights, strangers, and copies that were
trained on, changed or disguised; and a family: a public model, an owner's and innocents' that were fine-tuned from it,
and thieves' copies of the owner's. Everybody is located by the owner's model and by its robust layout key.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon import zoo
from canon.attacks import attack
from canon.attacks.after import parse
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet
from canon.containment import locate
from canon.verify import LayoutKey, register
from canon_benchmarks.cases import Start

EPOCHS: Final = 12
RATES: Final = {"adamw": 1e-3, "sgd": 0.05, "slow sgd": 0.01}
NOISE: Final = 77_777
"""Seed of noise: another than that of first weights, which would be drawn from the same stream."""


def perceptron() -> nn.Module:
    """Four linear layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip


def convolutions() -> nn.Module:
    """Four convolutions with norms, a mean, and a linear layer."""
    layers: list[nn.Module] = []
    before = 3
    for width, stride in ((24, 1), (32, 1), (48, 2), (48, 1)):
        layers += [nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


NETWORKS: Final[dict[str, Callable[[], nn.Module]]] = {"perceptron": perceptron, "convolutions": convolutions}


class School:
    """One network, one way to learn."""

    def __init__(self, network: str, optimiser: str) -> None:
        self.make, self.optimiser, self.rate = NETWORKS[network], optimiser, RATES[optimiser]
        data = zoo.dataset("digits").resized(8)
        self.images, self.labels = data.images_at(data.train_images, "cpu"), data.train_labels

    @functools.cached_property
    def owner(self) -> nn.Module:
        """The owner's model."""
        return self.learn(self.first_weights(0), 1)

    @functools.cached_property
    def public(self) -> nn.Module:
        """The family's public model."""
        return self.learn(self.first_weights(0), 4, part=2)

    @functools.cached_property
    def heir(self) -> nn.Module:
        """What the family's owner made of the public model."""
        return self.learn(self.public, 5, 4, 0.5, part=1)

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


def _disguised(school: School) -> nn.Module:
    return attack(school.owner, school.example, "mix-opseq", ratio=0.2).model


def _after(step: str) -> Callable[[School, int], nn.Module]:
    return lambda s, _: parse(step).apply(s.owner, torch.Generator().manual_seed(NOISE))


WHO: Final[dict[str, Callable[[School, int], nn.Module]]] = {
    "same first weights, trained apart": lambda s, other: s.learn(s.first_weights(0), 2 + other),
    "stranger": lambda s, other: s.learn(s.first_weights(9 + other), 9 + other),
    "copy, two epochs at a third of the rate": lambda s, _: s.learn(s.owner, 7, 2, 1 / 3),
    "copy, two epochs": lambda s, _: s.learn(s.owner, 7, 2),
    "copy, five epochs": lambda s, _: s.learn(s.owner, 7, 5),
    "copy, disguised, two epochs at a third of the rate": lambda s, _: s.learn(_disguised(s), 7, 2, 1 / 3),
    **{f"copy, {step}": _after(step) for step in ("noise:relative=0.2", "round=8", "round=4", "prune=0.3")},
    "family: innocent, the owner's images": lambda s, _: s.learn(s.public, 6, 4, 0.5, part=1),
    "family: innocent, other images": lambda s, _: s.learn(s.public, 6, 4, 0.5, part=2),
    "family: thief, one mild epoch": lambda s, _: s.learn(s.heir, 7, 1, 0.05, part=1),
    "family: the public model": lambda s, _: s.public,
}
"""Who there is, and how that network comes to be."""


@functools.lru_cache(maxsize=1)
def _school(network: str, optimiser: str) -> School:
    return School(network, optimiser)


@functools.lru_cache(maxsize=2)
def _key(network: str, optimiser: str, family: bool) -> LayoutKey:
    school = _school(network, optimiser)
    return register(school.heir if family else school.owner, school.example, robust=True)


def measure_start(case: Start, setup: Setup, sheet: Sheet) -> None:
    """Locate the owner's network in one suspect. `changed`, `shared` and `added` are those of `location.Start`."""
    school, family = _school(case.network, case.optimiser), case.who.startswith("family: ")
    suspect = WHO[case.who](school, case.other)
    sheet.note(accuracy=school.accuracy(suspect))
    anchors = (("model", school.heir if family else school.owner), ("key", _key(case.network, case.optimiser, family)))
    for way, anchor in anchors:
        found = locate(suspect, anchor, school.example)
        sheet.note(**{f"{way}_answer": found.answer, f"{way}_deep": round(found.deep, 4)})
        if found.start is not None:
            names = ("changed", "shared", "added")
            sheet.note(**{f"{way}_{name}": round(getattr(found.start, name), 5) for name in names})
        if family:
            aware = locate(suspect, anchor, school.example, ancestors=(school.public,))
            updates = round(aware.ancestors[0].cosine, 3)
            sheet.note(**{f"{way}_with_ancestor": aware.answer, f"{way}_updates": updates})
