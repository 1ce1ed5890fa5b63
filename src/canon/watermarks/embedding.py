"""A scheme's part in one training run."""

from __future__ import annotations

from abc import ABC
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.errors import WatermarkError
from canon.watermarks.key import Setting


class Embedding(nn.Module, ABC):
    """What a scheme adds to training: loss terms, masks, branches, and what it leaves in the key.

    It is a module so that its own parameters train with the model, move to its device and are kept
    in checkpoints. It never holds the model itself, which is passed to every method. All methods
    have a default, so a scheme writes only those it needs; `Embedding()` itself adds nothing.
    """

    label_smoothing: float = 0.0
    """Share of the target that the task loss spreads over all classes; training sets it from its options."""

    mark_strength: float = 1.0
    """Factor on all that a scheme adds to the loss; training sets it from its options."""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of one batch, and the logits for the running accuracy."""
        logits = forward(model, images)
        return self.task_loss(logits, labels) + self.mark_strength * self.penalty(model), logits

    def task_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy: what a model without a mark is trained on."""
        return functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=self.label_smoothing)

    def penalty(self, model: nn.Module) -> Tensor:
        """A loss term that depends on the weights alone."""
        return next(model.parameters()).new_zeros(())

    def before_epoch(self, model: nn.Module) -> None:
        """Work that is done once an epoch, such as training an extractor network."""
        return None

    def after_step(self, model: nn.Module) -> None:
        """Put right what an optimiser step may have broken, such as a sparsity mask."""
        return None

    def host_parameters(self) -> list[nn.Parameter]:
        """Parameters of this module that the host's optimiser trains."""
        return list(self.parameters())

    def key_settings(self) -> dict[str, Setting]:
        """Plain values for the key."""
        return {}

    def key_tensors(self) -> dict[str, Tensor]:
        """Tensors for the key: by default all parameters and buffers."""
        return dict(self.state_dict())


def mixed_precision(device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 arithmetic on a GPU, plain float32 elsewhere; bfloat16 needs no loss scaling."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def forward(model: nn.Module, images: Tensor) -> Tensor:
    """Logits in float32, computed in mixed precision where that pays."""
    with mixed_precision(images.device):
        return logits_of(model(images)).float()


def logits_of(output: object) -> Tensor:
    """The scores in what a model returns: a tensor, or the `logits` of a model of transformers."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise WatermarkError(
            f"the model returns a {type(output).__name__}, and not scores over classes",
            hint="Wrap it in a module that returns them.",
        )
    return logits


def hinge(values: Tensor, signs: Tensor, margin: float = 0.1) -> Tensor:
    """`relu(margin − s·v)` for every carrier: zero once a value has its sign and some room."""
    return functional.relu(margin - values * signs)
