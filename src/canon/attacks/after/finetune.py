"""finetune: some epochs of training on labelled data."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.attacks.after.interface import Step
from canon.errors import AttackError


@final
@dataclass(frozen=True)
class Finetune(Step):
    """Stochastic gradient descent with momentum on the cross-entropy; norms follow the data as in any training."""

    name: ClassVar[str] = "finetune"

    dataset: str = ""
    """Name of a public dataset, which the command line looks up; a program gives `data`."""

    epochs: int = 1
    """How often each image is seen."""

    rate: float = 0.01
    """Learning rate."""

    batch: int = 64
    """Images at a time."""

    momentum: float = 0.9
    """Momentum of the descent."""

    data: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)
    """Inputs and their classes, such as `train_images` and `train_labels` of a dataset of `canon.zoo`."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise AttackError(f"fine-tuning needs at least one epoch and image, got {self.epochs} and {self.batch}")
        if not (self.rate > 0 and math.isfinite(self.rate)) or not 0 <= self.momentum < 1:
            raise AttackError(f"rate and momentum must be positive and below 1, got {self.rate} and {self.momentum}")
        if self.data is not None and len(self.data[0]) != len(self.data[1]):
            raise AttackError(f"there are {len(self.data[0])} inputs to train on and {len(self.data[1])} labels")

    def apply(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """Train a copy."""
        if self.data is None:
            raise AttackError(
                "fine-tuning needs data",
                hint="Give canon.attacks.after.Finetune(data=(images, labels)), or --after finetune:dataset=digits",
            )
        tuned = copy.deepcopy(model).train()
        for parameter in tuned.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        optimiser = torch.optim.SGD(tuned.parameters(), self.rate, self.momentum)
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))  # dropout draws from there
            for images, labels in self._batches(tuned, generator):
                optimiser.zero_grad()
                loss = functional.cross_entropy(_logits(tuned, images, labels), labels)
                loss.backward()
                optimiser.step()
        if not all(bool(parameter.isfinite().all()) for parameter in tuned.parameters()):
            raise AttackError("fine-tuning made weights that are not finite", hint="Lower the rate")
        optimiser.zero_grad()
        return tuned.requires_grad_(False).eval() if not _trainable(model) else tuned.eval()

    def _batches(self, model: nn.Module, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        assert self.data is not None, "checked by the caller"
        images, labels = self.data
        like = next(model.parameters())
        for _ in range(self.epochs):
            for part in torch.randperm(len(images), generator=generator).split(self.batch):
                if len(part) > 1 or len(images) == 1:  # norms need two
                    yield images[part].to(like), labels[part].to(like.device)


def _trainable(model: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in model.parameters())


def _logits(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    result = model(images)
    if not isinstance(result, Tensor) or result.ndim != 2 or int(labels.max()) >= result.shape[1]:
        raise AttackError("fine-tuning needs a classifier with as many classes as the labels name")
    return result
