"""What a watermarking scheme is.

A scheme prepares a model and a key, takes part in training, and reads its message back. The base
class owns validation, training and judging; an author writes four methods: which layers bear the
mark by default, how many bits they hold, the part in training, and the reading.
"""

from __future__ import annotations

import copy
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from canon.errors import KeyFileError, WatermarkError, reason_of
from canon.watermarks.controls import COUNT, KINDS, Controls, Kind, readers
from canon.watermarks.data import Dataset
from canon.watermarks.derive import Derived, Draws, Seeded
from canon.watermarks.embedding import Embedding
from canon.watermarks.extraction import Extraction, judged
from canon.watermarks.key import Key, check_key
from canon.watermarks.layers import architecture, check_layers, layer_weight
from canon.watermarks.message import DEFAULT_BITS, Message
from canon.watermarks.reading import Reader, Reading
from canon.watermarks.train import EpochReport, MarkState, Progress, TrainOptions, train

_EXAMPLES = 4


@dataclass(frozen=True, eq=False)
class Target:
    """What a scheme is given to prepare its part in training."""

    model: nn.Module
    """A copy of the user's model; the scheme may change its starting weights."""
    dataset: Dataset
    """The data that will be trained on."""
    layers: tuple[str, ...]
    """Layers to mark, checked to exist."""
    message: Message
    """Bits to embed, checked to fit."""
    generator: torch.Generator
    """Randomness for what is trained, and for keys that are not derived."""
    derived: Derived | None = None
    """Where secrets come from if they follow from one secret."""

    @property
    def draws(self) -> Draws:
        """Where projections, positions, passports and signs are drawn from."""
        return Seeded(self.generator) if self.derived is None else self.derived

    def examples(self, count: int = _EXAMPLES) -> Tensor:
        """A few training images, as the model sees them."""
        device = next(self.model.parameters()).device
        return self.dataset.images_at(self.dataset.train_images[:count], device)


Learn = Callable[[nn.Module, Embedding], None]
"""Train a model in place, in a few epochs of the user's schedule."""

SHORT = 4
"""A preliminary run has as many epochs as the user's, divided by this."""


@dataclass(frozen=True, eq=False)
class EmbedResult:
    """A watermarked model and the key that reads it."""

    model: nn.Module
    """The model to ship: ordinary layers, evaluation mode."""
    key: Key
    """The owner's secret."""
    extraction: Extraction
    """What the key reads out of the shipped model."""
    history: tuple[EpochReport, ...]
    """One report for every epoch."""
    seconds: float
    """Wall time of preparing and training."""


class Scheme(ABC):
    """A white-box watermarking scheme; see `docs/test_my_scheme.md`."""

    name: ClassVar[str]
    """How the registry, keys and records call it."""
    reference: ClassVar[str]
    """The paper it follows."""
    trained: ClassVar[tuple[str, ...] | None] = None
    """How names of key entries begin that come out of training; the others can be derived. None: no key can be."""
    idle: ClassVar[tuple[str, ...]] = ()
    """Key entries that decide no bit, whatever they say."""
    default_bits: ClassVar[int] = DEFAULT_BITS
    """Length of a message drawn by seed."""
    settled_margin: ClassVar[float]
    """Margin from which the message counts as in with room to spare."""
    carries_alone: ClassVar[bool] = True
    """Whether the bits that a key reads from a model without its mark are fair coins. They are where the key is drawn
    and never trained; where it is not so, the p-value is a share of controls."""
    unmarked: ClassVar[tuple[Kind, ...]] = KINDS
    """Changes to the marked layers that take the mark away; the key is read after them, as a control."""

    @abstractmethod
    def default_layers(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        """Layers to mark when the user names none; `images` are a few training images."""

    @abstractmethod
    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        """Most message bits that these layers hold."""

    @abstractmethod
    def prepare(self, target: Target) -> Embedding:
        """Draw the secrets, set starting weights, and return the part in training."""

    def begin(self, target: Target, learn: Learn) -> None:
        """Change the starting weights by training, before `prepare`; by default nothing."""
        return None

    @abstractmethod
    def read(self, reader: Reader, key: Key) -> Reading:
        """Read every carrier by way of `reader`, which copes with other shapes."""

    def check_key(self, key: Key) -> None:
        """Raise a KeyFileError unless the key's tensors and settings are what this scheme writes; see `schema`.

        Called for every key that is made, loaded or read. That a key is plain data was checked before; by default
        that is all.
        """
        return None

    @final
    def embed(
        self,
        model: nn.Module,
        dataset: Dataset,
        *,
        message: Message | str | None = None,
        seed: int = 0,
        layers: Iterable[str] | None = None,
        options: TrainOptions | None = None,
        progress: Progress | None = None,
        secret: bytes | None = None,
    ) -> EmbedResult:
        """Train a copy of `model` so that it carries the message.

        `message` is a `Message`, a text (see `Message.parse`), or None for random bits. All secrets
        follow from `seed`, so an owner's seed is a secret too; with `secret` they follow from that.
        """
        started = time.perf_counter()
        options = options or TrainOptions()
        target = self._target(model, dataset, message, seed, layers, secret)
        self.begin(target, _short_runs(dataset, options, seed))
        embedding = self.prepare(target)
        home = next(model.parameters()).device

        def inspect(trained: nn.Module) -> MarkState:
            found = self.extract(trained, self._key(target, embedding), target.examples(1))
            return MarkState(found.similarity, found.margin >= self.settled_margin)

        history = train(
            target.model,
            dataset.to(options.device),
            embedding,
            options,
            inspect=inspect,
            seed=seed,
            identity=f"{self.name} {seed} {target.message.hex} {' '.join(target.layers)}",
            progress=progress,
        )
        shipped = target.model.to(home).eval()
        key = self._key(target, embedding)
        return EmbedResult(
            model=shipped,
            key=key,
            extraction=self.extract(shipped, key, target.examples(1)),
            history=history,
            seconds=time.perf_counter() - started,
        )

    @final
    def draw_key(
        self,
        model: nn.Module,
        dataset: Dataset,
        *,
        message: Message | str | None = None,
        seed: int = 0,
        layers: Iterable[str] | None = None,
        secret: bytes | None = None,
    ) -> Key:
        """A key as `embed` would start with, without training: somebody else's key, or one derived again."""
        target = self._target(model, dataset, message, seed, layers, secret)
        return self._key(target, self.prepare(target))

    @final
    def extract(self, model: nn.Module, key: Key, example: Tensor | None = None) -> Extraction:
        """Read the message; on a model of other shapes too, which the result then says.

        `example` is an input of the model, for schemes that look at how it is wired; else they read its program.
        """
        self._check(model, key)
        reader = Reader(model, example)
        return self._judged(key, reader, self.read(reader, key))

    @final
    def controls(
        self, model: nn.Module, key: Key, count: int = COUNT, seed: int | None = None, example: Tensor | None = None
    ) -> Controls:
        """Read the key from models that it cannot have marked: `model` with other numbers in the marked places.

        `seed` draws the numbers; without one they are fresh, so that no key can be made to fit them.
        """
        self._check(model, key)
        seed = secrets.randbits(48) if seed is None else seed
        kinds: list[Kind] = []
        found: list[Extraction] = []
        for kind, reader in readers(Reader(model, example), self.unmarked, count, seed):
            kinds.append(kind)
            found.append(self._judged(key, reader, self.read(reader, key)))
        matched = tuple(reading.matched for reading in found)
        return Controls(self.name, seed, tuple(kinds), matched, found[0].total, self.carries_alone)

    def _check(self, model: nn.Module, key: Key) -> None:
        """Refuse keys that are not this scheme's, or not for this model."""
        if key.scheme != self.name:
            raise KeyFileError(
                f"the key belongs to the scheme '{key.scheme}', not to '{self.name}'",
                hint=f'Read it with canon.watermarks.get("{key.scheme}").',
            )
        if architecture(model) != key.architecture:
            raise KeyFileError(
                "the key belongs to another architecture: the model's layers have other names",
                hint="Give the model that was marked, or its obfuscated or recovered form.",
            )
        check_key(key)
        check_layers(model, key.layers)
        for layer, shape in key.shapes.items():
            if layer_weight(model, layer).ndim != len(shape):
                raise KeyFileError("the key expects another kind of layer", where=layer)

    def _judged(self, key: Key, reader: Reader, reading: Reading) -> Extraction:
        """What was read, bit by bit, against what the key expects."""
        return judged(self.name, self.carries_alone, key, reader, reading)

    @final
    def similarity(self, model: nn.Module, key: Key, example: Tensor | None = None) -> float:
        """The native similarity alone."""
        return self.extract(model, key, example).similarity

    def _target(
        self,
        model: nn.Module,
        dataset: Dataset,
        message: Message | str | None,
        seed: int,
        layers: Iterable[str] | None,
        secret: bytes | None = None,
    ) -> Target:
        """Check everything a user can get wrong."""
        copied = copy.deepcopy(model).cpu().eval()
        images = dataset.images_at(dataset.train_images[:_EXAMPLES], "cpu")
        _check_takes(copied, images)
        chosen = self.default_layers(copied, images) if layers is None else tuple(layers)
        check_layers(copied, chosen)
        if message is None:
            message = Message.random(seed, self.default_bits)
        elif isinstance(message, str):
            message = Message.parse(message)
        capacity = self.capacity(copied, chosen, images)
        if len(message) > capacity:
            raise WatermarkError(
                f"the message has {len(message)} bits, but these layers hold {capacity}",
                where=", ".join(chosen),
                hint="Shorten the message or name more or larger layers.",
            )
        generator = torch.Generator().manual_seed(seed)
        return Target(copied, dataset, chosen, message, generator, self._derived(copied, chosen, secret))

    def _derived(self, model: nn.Module, layers: tuple[str, ...], secret: bytes | None) -> Derived | None:
        if secret is None:
            return None
        if self.trained is None:
            raise WatermarkError(f"the scheme '{self.name}' does not say how its keys are derived")
        return Derived(secret, self.name, {layer: layer_weight(model, layer).shape for layer in layers})

    def _key(self, target: Target, embedding: Embedding) -> Key:
        return Key(
            scheme=self.name,
            architecture=architecture(target.model),
            shapes={layer: tuple(layer_weight(target.model, layer).shape) for layer in target.layers},
            message=target.message,
            settings=embedding.key_settings(),
            tensors={name: value.detach().cpu().clone() for name, value in embedding.key_tensors().items()},
        )


def _check_takes(model: nn.Module, images: Tensor) -> None:
    try:
        with torch.no_grad():
            model(images)
    except Exception as error:  # the model's own code may raise anything
        raise WatermarkError(
            f"the model does not take the data, inputs of shape {tuple(images.shape)} and {images.dtype}: "
            f"{reason_of(error)}",
            hint="Give data of the size that the model takes; a model of another precision is trained as model.float()",
        ) from error


def _short_runs(dataset: Dataset, options: TrainOptions, seed: int) -> Learn:
    epochs = max(1, options.epochs // SHORT)
    short = replace(options, epochs=epochs, cooldown=min(epochs, options.cooldown), checkpoint=None)

    def learn(model: nn.Module, embedding: Embedding) -> None:
        train(
            model,
            dataset.to(options.device),
            embedding,
            short,
            inspect=lambda _model: MarkState(similarity=1.0, settled=True),
            seed=seed,
        )

    return learn
