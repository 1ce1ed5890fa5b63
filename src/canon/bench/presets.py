"""How each dataset and architecture is trained in the benchmark."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from canon.watermarks import TrainOptions

_BY_DATASET: Final = {
    "digits": TrainOptions(),
    "mnist": TrainOptions(epochs=8, batch_size=256, accuracy_goal=0.99),
    "cifar10": TrainOptions(epochs=40, batch_size=256),
    "cifar100": TrainOptions(epochs=40, batch_size=256),
}


def train_options(dataset: str, model: str, device: str) -> TrainOptions:
    """The options that a model of the benchmark is trained with, mark or no mark."""
    return replace(_BY_DATASET[dataset], device=device)
