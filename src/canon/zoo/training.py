"""How each dataset and architecture is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from canon.watermarks import Augmentation, TrainOptions

_DIGITS: Final = TrainOptions()
_MNIST: Final = TrainOptions(
    epochs=6,
    batch_size=512,
    learning_rate=3e-3,
    schedule="one-cycle",
    augmentation=Augmentation(shift=2),
    clipping=5.0,
)
_CIFAR: Final = TrainOptions(
    epochs=30,
    batch_size=512,
    optimizer="sgd",
    learning_rate=0.3,
    schedule="one-cycle",
    augmentation=Augmentation(shift=4, mirror=True),
    label_smoothing=0.1,
    clipping=5.0,
    mark_strength=0.1,
)
_LIBRARY: Final = TrainOptions(
    epochs=4, batch_size=32, learning_rate=4e-3, schedule="one-cycle", clipping=1.0, cooldown=1
)
_SMALL_STEM: Final = replace(_CIFAR, learning_rate=0.5)

_BY_DATASET: Final = {"digits": _DIGITS, "mnist": _MNIST, "cifar10": _CIFAR, "cifar100": _CIFAR, "library": _LIBRARY}

# Deep and thin, or with dropout and stochastic depth: these want more passes, on few images also a slower end.
_BY_MODEL: Final = {
    ("digits", "efficientnet_b0"): replace(_DIGITS, epochs=60, cooldown=10, accuracy_goal=0.985),
    ("digits", "inception_v3"): replace(_DIGITS, epochs=45, cooldown=8, accuracy_goal=0.985),
    ("mnist", "efficientnet_b0"): replace(_MNIST, epochs=10, learning_rate=1.6e-2),
    ("mnist", "inception_v3"): replace(_MNIST, epochs=8, learning_rate=2e-2),
    ("cifar10", "small:resnet18"): _SMALL_STEM,
    ("cifar100", "small:resnet18"): _SMALL_STEM,
}


def train_options(dataset: str, model: str, device: str) -> TrainOptions:
    """The options that a model is trained with, mark or no mark."""
    return replace(_BY_MODEL.get((dataset, model), _BY_DATASET[dataset]), device=device)
