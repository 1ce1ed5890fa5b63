"""The training loop, for watermarked models and for their unmarked twins alike.

There are two schedules. *Until done*: the learning rate stands until the work is done or the epochs run out, and then
falls to zero over the last epochs, which is what makes the final accuracy steady. "Done" means that the training
accuracy of a whole epoch reaches the goal and the message is in with room to spare. *One cycle*: all epochs are run;
the rate rises along half a cosine for a part of them and falls to zero along another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import nn

from canon.errors import WatermarkError
from canon.watermarks.data import Augmentation, Dataset
from canon.watermarks.embedding import Embedding, logits_of

RISING: Final = 0.3
"""Share of one cycle in which the rate rises."""

FIRST_RATE: Final = 0.04
"""Share of the rate that a cycle begins with."""


@dataclass(frozen=True)
class TrainOptions:
    """How to train. The defaults suit the digits; larger sets want fewer, larger batches."""

    epochs: int = 30
    """Most epochs, the falling ones included."""
    batch_size: int = 64
    """Images per step."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or SGD with Nesterov momentum 0.9."""
    learning_rate: float = 1e-3
    """Learning rate before it falls."""
    weight_decay: float = 5e-4
    """Weight decay of either optimiser."""
    schedule: Literal["until-done", "one-cycle"] = "until-done"
    """Whether training ends when the work is done, or the rate goes through one cycle over all epochs."""
    cooldown: int = 3
    """Until done: epochs over which the learning rate falls to zero at the end."""
    accuracy_goal: float = 0.98
    """Until done: training accuracy of one epoch from which the task counts as learned."""
    augmentation: Augmentation | None = None
    """How images are varied as they are drawn."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes."""
    clipping: float | None = None
    """Longest gradient: a longer one is shortened to it. A mark's loss can begin with steep slopes, which AdamW would
    remember for a thousand steps."""
    mark_strength: float = 1.0
    """Factor on all that a scheme adds to the loss. A step of SGD is as long as the gradient, so strengths that were
    published for a rate of 0.01 to 0.1 want a factor below one at a higher rate; AdamW's steps do not depend on it."""
    device: str = "cpu"
    """Where to train; a GPU trains in mixed precision."""
    checkpoint: Path | None = None
    """File to write after every epoch and to go on from where it exists."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2 or not 0 <= self.cooldown <= self.epochs:
            raise WatermarkError(
                "training needs at least one epoch, batches of at least two images and no longer "
                f"a cool-down than there are epochs; got {self.epochs}, {self.batch_size} and "
                f"{self.cooldown}"
            )
        if self.optimizer not in ("adamw", "sgd"):
            raise WatermarkError(f"no optimiser '{self.optimizer}'", hint="Use adamw or sgd.")
        if self.schedule not in ("until-done", "one-cycle"):
            raise WatermarkError(f"no schedule '{self.schedule}'", hint="Use until-done or one-cycle.")
        if self.clipping is not None and not 0 < self.clipping < math.inf:
            raise WatermarkError(f"the longest gradient must be a positive number, got {self.clipping}")
        if not 0 < self.mark_strength < math.inf:
            raise WatermarkError(f"the strength of the mark must be a positive number, got {self.mark_strength}")
        if not 0 <= self.label_smoothing < 1:
            raise WatermarkError(f"label smoothing must be in [0, 1), got {self.label_smoothing}")


@dataclass(frozen=True)
class EpochReport:
    """What a progress callback is told after every epoch."""

    epoch: int
    """Counted from one."""
    epochs: int
    """Most epochs there may be."""
    loss: float
    """Mean loss of the epoch."""
    accuracy: float
    """Training accuracy over the epoch."""
    similarity: float
    """Native similarity of the mark after the epoch; 1 where nothing is embedded."""
    settled: bool
    """Whether the message is in with room to spare."""
    seconds: float
    """Wall time of the epoch."""


@dataclass(frozen=True)
class MarkState:
    """How far the message is in."""

    similarity: float
    """Native similarity."""
    settled: bool
    """Whether every carrier agrees with room to spare."""


Progress = Callable[[EpochReport], None]
Inspect = Callable[[nn.Module], MarkState]


@dataclass
class _Course:
    """Where a run stands; kept in checkpoints."""

    identity: str
    epoch: int = 0
    falling_since: int | None = None
    history: list[EpochReport] = field(default_factory=list)


def train(
    model: nn.Module,
    dataset: Dataset,
    embedding: Embedding,
    options: TrainOptions,
    *,
    inspect: Inspect,
    seed: int,
    identity: str = "",
    progress: Progress | None = None,
) -> tuple[EpochReport, ...]:
    """Train `model` and `embedding` in place; returns the history, one report an epoch."""
    device = torch.device(options.device)
    model.to(device).train()
    if device.type == "cuda":
        _lay_out(model, torch.channels_last)  # what its convolutions are fastest in
    embedding.to(device).train()
    embedding.label_smoothing, embedding.mark_strength = options.label_smoothing, options.mark_strength
    dataset = dataset.augmented(options.augmentation)
    optimizer = _optimizer(model, embedding, options)
    course = _resume(model, embedding, optimizer, options, identity)
    with _preserved_random_state(device):
        while course.epoch < options.epochs and not _finished(course, options):
            started = time.perf_counter()
            torch.manual_seed(seed * 1_000_003 + course.epoch)
            loss, accuracy = _epoch(model, dataset, embedding, optimizer, options, course, seed)
            model.eval()
            state = inspect(model)
            model.train()
            course.epoch += 1
            report = EpochReport(
                course.epoch,
                options.epochs,
                loss,
                accuracy,
                state.similarity,
                state.settled,
                time.perf_counter() - started,
            )
            course.history.append(report)
            if (
                options.schedule == "until-done"
                and course.falling_since is None
                and (
                    (accuracy >= options.accuracy_goal and state.settled)
                    or course.epoch >= options.epochs - options.cooldown
                )
            ):
                course.falling_since = course.epoch
            _keep(model, embedding, optimizer, options, course)
            if progress is not None:
                progress(report)
    model.eval()
    _lay_out(model, torch.contiguous_format)
    return tuple(course.history)


def accuracy(model: nn.Module, dataset: Dataset, *, batch_size: int = 256) -> float:
    """Share of test images, or tokens, that the model, in evaluation mode, classifies rightly."""
    device = next(model.parameters()).device
    training = model.training
    right = 0
    try:
        model.eval()
        with torch.no_grad():
            for images, labels in dataset.test_batches(batch_size, device):
                right += int((logits_of(model(images)).argmax(-1) == labels).sum())
    finally:
        model.train(training)
    return right / max(1, dataset.test_labels.numel())


def _epoch(
    model: nn.Module,
    dataset: Dataset,
    embedding: Embedding,
    optimizer: torch.optim.Optimizer,
    options: TrainOptions,
    course: _Course,
    seed: int,
) -> tuple[float, float]:
    """One pass over the training images: mean loss and accuracy."""
    device = torch.device(options.device)
    embedding.before_epoch(model)
    order = torch.Generator().manual_seed(seed * 1_000_003 + course.epoch)
    steps = -(-len(dataset.train_images) // options.batch_size)
    total = torch.zeros((), device=device)
    right = torch.zeros((), device=device)
    seen = 0
    for step, (images, labels) in enumerate(dataset.shuffled_batches(options.batch_size, order, device)):
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * _factor(course, options, step / steps)
        loss, logits = embedding.loss(model, images, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if options.clipping is not None:
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], options.clipping)
        optimizer.step()
        embedding.after_step(model)
        # Summed on the device: reading a number every step would make a GPU wait.
        total += loss.detach() * labels.numel()
        right += (logits.detach().argmax(-1) == labels).sum()
        seen += labels.numel()
    return float(total) / seen, float(right) / seen


def _factor(course: _Course, options: TrainOptions, progress: float) -> float:
    """Share of the learning rate at this point of the epoch."""
    if options.schedule == "one-cycle":
        return one_cycle((course.epoch + progress) / options.epochs)
    if course.falling_since is None:
        return 1.0
    passed = course.epoch - course.falling_since + progress
    return max(0.0, 1.0 - passed / options.cooldown)


def one_cycle(passed: float) -> float:
    """Share of the learning rate when this share of all steps has passed.

    >>> [round(one_cycle(share), 2) for share in (0, 0.15, 0.3, 0.65, 1)]
    [0.04, 0.52, 1.0, 0.5, 0.0]
    """
    if passed < RISING:
        return FIRST_RATE + (1 - FIRST_RATE) * (1 - math.cos(math.pi * passed / RISING)) / 2
    return (1 + math.cos(math.pi * (passed - RISING) / (1 - RISING))) / 2


def _finished(course: _Course, options: TrainOptions) -> bool:
    since = course.falling_since
    return since is not None and course.epoch >= since + options.cooldown


def _optimizer(model: nn.Module, embedding: Embedding, options: TrainOptions) -> torch.optim.Optimizer:
    parameters = [value for value in model.parameters() if value.requires_grad]
    parameters += embedding.host_parameters()
    rate, decay = options.learning_rate, options.weight_decay
    if options.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9, nesterov=True, weight_decay=decay, fused=True)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=True)


def _lay_out(model: nn.Module, layout: torch.memory_format) -> None:
    """Put the numbers of all convolutions into another order in memory; what they mean stays."""
    model.to(memory_format=layout)  # type: ignore[call-overload]  # torch's stubs do not know it


@contextmanager
def _preserved_random_state(device: torch.device) -> Iterator[None]:
    """Let dropout draw from torch's global state without leaving a trace in it."""
    indices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=indices):
        yield


def _keep(
    model: nn.Module,
    embedding: Embedding,
    optimizer: torch.optim.Optimizer,
    options: TrainOptions,
    course: _Course,
) -> None:
    if options.checkpoint is None:
        return
    state = {
        "model": model.state_dict(),
        "embedding": embedding.state_dict(),
        "optimizer": optimizer.state_dict(),
        "course": asdict(course),
    }
    partial = options.checkpoint.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(options.checkpoint)


def _resume(
    model: nn.Module,
    embedding: Embedding,
    optimizer: torch.optim.Optimizer,
    options: TrainOptions,
    identity: str,
) -> _Course:
    """Go on from a checkpoint, which is read as plain tensors and never executed."""
    if options.checkpoint is None or not options.checkpoint.exists():
        return _Course(identity)
    where = str(options.checkpoint)
    try:
        state: dict[str, Any] = torch.load(options.checkpoint, map_location=options.device, weights_only=True)
        course = state["course"]
    except Exception as error:  # torch raises many kinds for a damaged or hostile file
        raise WatermarkError("the checkpoint cannot be read", where=where, hint="Delete it to start over.") from error
    if course["identity"] != identity:
        raise WatermarkError("the checkpoint belongs to another run", where=where, hint="Name another file.")
    model.load_state_dict(state["model"])
    embedding.load_state_dict(state["embedding"])
    optimizer.load_state_dict(state["optimizer"])
    course["history"] = [EpochReport(**report) for report in course["history"]]
    return _Course(**course)
