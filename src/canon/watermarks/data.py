"""Labelled images for training, or texts, as one frozen value.

Where they come from is none of this file's business: `canon.zoo` fills it from public datasets, and a user fills it
from their own tensors. A text is a row of token ids. Its label is one class, or one for every token: the next token.
What is said of images elsewhere holds for texts as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from canon.errors import DataError


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied as they are drawn."""

    shift: int = 0
    """Most pixels that an image is moved by, up or down and to the sides; it goes on as in a mirror at its edges."""
    mirror: bool = False
    """Whether half of the images are mirrored."""

    def applied(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Every image varied by itself; `generator` is one of the CPU, so that a seed means the same everywhere.

        >>> Augmentation(shift=2, mirror=True).applied(torch.ones(4, 3, 8, 8), torch.Generator()).shape
        torch.Size([4, 3, 8, 8])
        """
        count, _, height, width = images.shape
        if self.mirror:
            chosen = (torch.rand(count, generator=generator) < 0.5).to(images.device, non_blocking=True)
            images = torch.where(chosen[:, None, None, None], images.flip(3), images)
        if self.shift:
            padded = functional.pad(images, (self.shift,) * 4, mode="reflect").permute(0, 2, 3, 1)
            corner = torch.randint(2 * self.shift + 1, (2, count, 1, 1), generator=generator).to(images.device)
            rows = corner[0] + torch.arange(height, device=images.device)[None, :, None]
            columns = corner[1] + torch.arange(width, device=images.device)[None, None, :]
            which = torch.arange(count, device=images.device)[:, None, None]
            images = padded[which, rows, columns].permute(0, 3, 1, 2)
        return images


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images, or texts, with their labels.

    >>> images, labels = torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 0, 1])
    >>> data = Dataset("tiny", 2, images, labels, images, labels)
    >>> data.images_at(data.train_images[:2], "cpu").shape
    torch.Size([2, 3, 8, 8])
    """

    name: str
    """How records and messages call it."""
    classes: int
    """Number of classes; labels are below it."""
    train_images: Tensor
    """Normalised float images, `N×C×H×W`; or token ids, `N×L`, int64."""
    train_labels: Tensor
    """Class of each training image, int64; of texts also of each token, `N×L`."""
    test_images: Tensor
    """Images that never train."""
    test_labels: Tensor
    """Class of each test image or token, int64."""
    input_size: int | None = None
    """Height and width that batches are resized to as they are drawn; None leaves them alone."""
    augmentation: Augmentation | None = None
    """How training images are varied as they are drawn; None leaves them alone."""

    def __post_init__(self) -> None:
        _check_split(self.name, "train", self.train_images, self.train_labels, self.classes)
        _check_split(self.name, "test", self.test_images, self.test_labels, self.classes)
        if len(self.train_images) == 0:
            raise DataError(
                f"the dataset '{self.name}' has no training images",
                hint="Embedding a watermark trains the model, so give at least one batch.",
            )

    @property
    def texts(self) -> bool:
        """Whether the inputs are token ids."""
        return not self.train_images.is_floating_point()

    def augmented(self, augmentation: Augmentation | None) -> Dataset:
        """The same images, varied as they are drawn for training."""
        if augmentation is not None and self.texts:
            raise DataError(f"the dataset '{self.name}' holds texts, which cannot be moved or mirrored")
        return replace(self, augmentation=augmentation)

    def resized(self, size: int) -> Dataset:
        """The same images, drawn at another height and width."""
        if self.texts:
            raise DataError(f"the dataset '{self.name}' holds texts, which have no height and width")
        return replace(self, input_size=size)

    def limited(self, train: int, test: int) -> Dataset:
        """The first `train` and `test` images alone."""
        return replace(
            self,
            train_images=self.train_images[:train],
            train_labels=self.train_labels[:train],
            test_images=self.test_images[:test],
            test_labels=self.test_labels[:test],
        )

    def to(self, device: str | torch.device) -> Dataset:
        """The same images, held on a device."""
        return replace(
            self,
            train_images=self.train_images.to(device),
            train_labels=self.train_labels.to(device),
            test_images=self.test_images.to(device),
            test_labels=self.test_labels.to(device),
        )

    def images_at(self, images: Tensor, device: str | torch.device) -> Tensor:
        """Images as the model sees them: on its device, at the input size."""
        images = images.to(device)
        if self.input_size is None or images.shape[-1] == self.input_size:
            return images
        size = (self.input_size, self.input_size)
        return functional.interpolate(images, size=size, mode="bilinear", align_corners=False)

    def shuffled_batches(
        self, size: int, generator: torch.Generator, device: str | torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over the training images in random order, without a last batch of one image.

        A norm layer cannot take statistics of a single image, hence the exception.
        """
        order = torch.randperm(len(self.train_images), generator=generator)
        for index in order.split(size):
            if len(index) == 1 and len(order) > 1:
                continue
            index = index.to(self.train_images.device)
            images, labels = self.train_images[index], self.train_labels[index].to(device)
            if self.augmentation is not None:
                images = self.augmentation.applied(images, generator)
            yield self.images_at(images, device), labels

    def test_batches(self, size: int, device: str | torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """The test images in their order."""
        for images, labels in zip(self.test_images.split(size), self.test_labels.split(size), strict=True):
            yield self.images_at(images, device), labels.to(device)


def classes_of(labels: Tensor) -> Tensor:
    """One class for every input; that of a text whose tokens all have one is its last token's.

    >>> classes_of(torch.tensor([[1, 2], [3, 4]]))
    tensor([2, 4])
    """
    return labels if labels.ndim == 1 else labels[:, -1]


def _check_split(name: str, split: str, images: Tensor, labels: Tensor, classes: int) -> None:
    where = f"{split} split of '{name}'"
    texts = images.ndim == 2 and images.dtype == torch.int64
    if not texts and (images.ndim != 4 or not images.is_floating_point()):
        raise DataError(
            "inputs must be images, a float tensor of shape N×C×H×W, or token ids, an int64 tensor of shape N×L; "
            f"got {tuple(images.shape)} of {images.dtype}",
            where=where,
        )
    shapes = [(len(images),), tuple(images.shape)] if texts else [(len(images),)]
    if tuple(labels.shape) not in shapes or labels.dtype != torch.int64:
        raise DataError(
            f"expected {len(images)} int64 labels, got {tuple(labels.shape)} of {labels.dtype}",
            where=where,
        )
    if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise DataError(
            f"labels run from {int(labels.min())} to {int(labels.max())}, but there are {classes} classes",
            where=where,
        )
