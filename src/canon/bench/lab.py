"""What a process keeps at hand between two cases: data, trained models, and what is derived from them.

Everything here can be made again from a case and a `Setup`, so that a case comes out the same in whatever process it is
measured.
"""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from canon import zoo
from canon.bench.cases import OfTrained, Training
from canon.bench.trained import ModelCache, Trained
from canon.verify import Layout, LayoutKey, layout_of, register
from canon.watermarks import Dataset, Key

EVALUATION_BATCH = 500
"""Test images per forward pass."""


@dataclass(frozen=True)
class Setup:
    """Where things lie and where to compute: all that a worker is told besides its case."""

    cache: Path
    """Folder of trained models."""

    data: Path | None = None
    """Folder of the datasets, for all but the digits."""

    device: str = "cpu"

    @property
    def models(self) -> ModelCache:
        """The cache of trained models."""
        return ModelCache(self.cache, self.device)


@dataclass(frozen=True, eq=False)
class Owner:
    """A trained model on the device, with its layout and with what it says of the test images."""

    trained: Trained
    model: nn.Module
    example: Tensor
    layout: Layout
    layout_key: LayoutKey
    """As read back from its file."""

    layout_key_bytes: int
    images: Tensor
    """Test images as the model is fed, on the device."""

    labels: Tensor
    logits: Tensor
    """The model's answers to them, in float32 on the CPU."""

    @property
    def key(self) -> Key:
        """The owner's watermark key."""
        assert self.trained.key is not None, "only a marked model has an owner"
        return self.trained.key

    @property
    def wrong_key(self) -> Key:
        """Somebody else's watermark key."""
        assert self.trained.wrong_key is not None, "only a marked model has an owner"
        return self.trained.wrong_key

    def accuracy(self, logits: Tensor) -> float:
        """Share of right answers."""
        return float((logits.argmax(1) == self.labels).double().mean())

    def answers(self, model: nn.Module) -> Tensor:
        """What another model says of the test images."""
        return answers(model, self.images)


@torch.no_grad()
def answers(model: nn.Module, images: Tensor) -> Tensor:
    """Logits of all images, in float32 on the CPU."""
    return torch.cat([model(batch).float().cpu() for batch in images.split(EVALUATION_BATCH)])


@functools.lru_cache(maxsize=2)
def dataset(setup: Setup, name: str) -> Dataset:
    """A dataset, as its images come."""
    return zoo.dataset(name, setup.data)


def dataset_for(setup: Setup, case: OfTrained) -> Dataset:
    """A case's dataset at the size that its model is fed."""
    data, size = dataset(setup, case.dataset), zoo.input_size(case.model)
    return data if size == zoo.DEFAULT_SIZE else data.resized(size)


def ensure_trained(setup: Setup, training: Training) -> None:
    """Train a model that is not in the cache."""
    if not setup.models.has(training):
        setup.models.make(training, dataset_for(setup, training))


@functools.lru_cache(maxsize=2)
def trained(setup: Setup, training: Training) -> Trained:
    """A trained model from the cache, trained now if it is not there."""
    ensure_trained(setup, training)
    return setup.models.load(training, dataset(setup, training.dataset).classes)


@functools.lru_cache(maxsize=2)
def owner(setup: Setup, training: Training) -> Owner:
    """A trained model, ready to be held against."""
    found = trained(setup, training)
    model = found.model.to(setup.device).eval()
    example = zoo.example_input(training.model).to(setup.device)
    images, labels = _test_images(setup, training.dataset, zoo.input_size(training.model))
    key, size = through_a_file(register(model, example, seed=0))
    return Owner(found, model, example, layout_of(model, example), key, size, images, labels, answers(model, images))


@functools.lru_cache(maxsize=2)
def stranger(setup: Setup, training: Training) -> tuple[nn.Module, Layout]:
    """Somebody else's model and its layout."""
    model = trained(setup, training).model.to(setup.device).eval()
    return model, layout_of(model, zoo.example_input(training.model).to(setup.device))


@functools.lru_cache(maxsize=2)
def _test_images(setup: Setup, name: str, size: int) -> tuple[Tensor, Tensor]:
    data = dataset(setup, name).resized(size)
    batches = data.test_images.split(EVALUATION_BATCH)
    return torch.cat([data.images_at(batch, setup.device) for batch in batches]), data.test_labels


def through_a_file(key: LayoutKey) -> tuple[LayoutKey, int]:
    """A layout key as read back from its file, and the size of that file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layout.safetensors"
        key.save(path)
        return LayoutKey.load(path), path.stat().st_size
