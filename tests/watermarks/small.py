"""A network and a dataset small enough to train in a test."""

from __future__ import annotations

from canon import zoo
from canon.api.trials import SmallNetwork
from canon.watermarks import Dataset, TrainOptions

QUICK = TrainOptions(epochs=40, batch_size=32, cooldown=1, accuracy_goal=0.9)


def small_net(seed: int = 0, extra: int = 0) -> SmallNetwork:
    """An untrained network that depends on the seed alone, its hidden layers `extra` wider."""
    return SmallNetwork(seed, extra)


def small_digits(train: int = 480, test: int = 120) -> Dataset:
    """A part of the digits at 16×16."""
    return zoo.dataset("digits").limited(train, test).resized(16)
