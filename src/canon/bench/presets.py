"""How each dataset and architecture is trained in the benchmark."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from canon.watermarks import TrainOptions

_BY_DATASET: Final = {
    "digits": TrainOptions(),
    "mnist": TrainOptions(epochs=6, batch_size=1024, learning_rate=2e-3, cooldown=2, accuracy_goal=0.99),
    "cifar10": TrainOptions(epochs=24, batch_size=512, learning_rate=2e-3, cooldown=6),
    "cifar100": TrainOptions(epochs=24, batch_size=512, learning_rate=2e-3, cooldown=6),
}

# Deep and thin, or with dropout and stochastic depth: these want more passes, on few images also a slower end.
_SLOW: Final = {
    ("digits", "efficientnet_b0"): TrainOptions(epochs=60, cooldown=10, accuracy_goal=0.985),
    ("digits", "inception_v3"): TrainOptions(epochs=45, cooldown=8, accuracy_goal=0.985),
    ("mnist", "inception_v3"): replace(_BY_DATASET["mnist"], epochs=9, accuracy_goal=0.98),
}


def train_options(dataset: str, model: str, device: str) -> TrainOptions:
    """The options that a model of the benchmark is trained with, mark or no mark."""
    return replace(_SLOW.get((dataset, model), _BY_DATASET[dataset]), device=device)
