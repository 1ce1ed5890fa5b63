"""Reading numbers out of a model that may not have the shape it was marked in.

An obfuscated model is wider, and its channels lie elsewhere. Reading is still defined: what exists
is read by index, cropped to the expected shape, and what is missing counts as zero. The score of
such a reading is a guess (chance level), so every difference is noted and handed to the caller.

A key is a stranger's data, so what it says about the model is looked up in the model instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Final

import torch
from torch import Tensor, nn

from canon.errors import CanonError, KeyFileError, WatermarkError
from canon.watermarks.key import Key
from canon.watermarks.layers import normalised_convolutions, weighted_layers, written_norms
from canon.watermarks.message import Message

PIXELS_AT_ONCE: Final = 1 << 20
"""Most pixels of a channel that are run through the model at once."""

ROOM: Final = 4
"""How many times larger than the model's a tensor may be that a key expects: what is missing counts as zero."""

SPARE_ROOM: Final = 1 << 20


@dataclass(frozen=True)
class Reading:
    """What a scheme read, before it is judged."""

    scores: Tensor
    """One number per message bit: above zero reads as 1, below as 0; zero or not finite is not read at all."""
    margin: float
    """The least agreement of any carrier with what it should say; above zero means all agree."""
    similarity: float | None = None
    """The scheme's native similarity, where it is not the share of right message bits."""
    expected: Message | None = None
    """What the scores should say, where it is derived from the key's message."""
    details: dict[str, str | float | bool] = field(default_factory=dict)
    """Further findings, such as a decoded text."""
    alternatives: int = 1
    """Among how many places the key was free to choose the one that fits best; luck has as many tries."""


class Reader:
    """Reads weights and activations of one model and notes every shape that differs.

    `example` is an input of the model, with which its norms are found where a key brings no images of its own.
    """

    def __init__(self, model: nn.Module, example: Tensor | None = None) -> None:
        self._model = model
        self._example = example
        self._mismatches: dict[str, str] = {}
        self._sources: dict[str, None] = {}

    @property
    def sources(self) -> tuple[str, ...]:
        """Everything that was read: tensors by name, and outputs as `<module> output`."""
        return tuple(self._sources)

    @property
    def mismatches(self) -> tuple[str, ...]:
        """One line for every tensor that had another shape than the key expects."""
        return tuple(self._mismatches.values())

    def weight(self, layer: str, shape: Sequence[int]) -> Tensor:
        """A layer's weight in the expected shape, as float32 on the CPU."""
        return self.parameter(layer, "weight", shape)

    def marked_weights(self, key: Key) -> list[Tensor]:
        """The weights of all watermark-bearing layers in the shapes they were marked in."""
        return [self.weight(layer, shape) for layer, shape in key.shapes.items()]

    def parameter(self, module: str, name: str, shape: Sequence[int]) -> Tensor:
        """A module's parameter in the expected shape, as float32 on the CPU."""
        value = getattr(self._module(module), name, None)
        if not isinstance(value, Tensor):
            raise WatermarkError(f"the module has no parameter '{name}'", where=module)
        return self._fit(f"{module}.{name}", value.detach().float().cpu(), shape)

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every undivided Conv2d's and every Linear's weight, as the model has them."""
        return {
            name: tuple(layer.weight.shape)
            for name, layer in weighted_layers(self._model).items()
            if isinstance(layer, nn.Linear) or layer.groups == 1
        }

    def norms(self, key: Key, images: Tensor | None = None) -> dict[str, str]:
        """The norm behind every marked layer, found in the model; a key that says otherwise is refused."""
        if images is None:
            images = self._example
        pairs = written_norms(self._model) if images is None else self._watched_norms(images[:1])
        said = key.settings.get("norms")
        assert isinstance(said, Mapping), "checked by the schema"
        for layer, norm in said.items():
            if pairs.get(layer) != norm:
                found = f"'{pairs[layer]}' is" if layer in pairs else "the model has none"
                raise KeyFileError(
                    f"the key reads '{norm}' as the norm behind the layer, but {found}",
                    where=layer,
                    hint="The key belongs to another model or was made up.",
                )
        return {layer: pairs[layer] for layer in key.shapes if layer in said}

    def _watched_norms(self, images: Tensor) -> dict[str, str]:
        with foreign_images():
            return normalised_convolutions(self._model, self._as_input(images))

    def _as_input(self, images: Tensor) -> Tensor:
        first = next(self._model.parameters())
        return images.to(first.device, first.dtype)

    def activations(self, widths: Mapping[str, int], images: Tensor) -> list[Tensor]:
        """The modules' outputs on these images, averaged over space: images × width, on the CPU."""
        for module in widths:
            self._module(module)
        few = max(1, PIXELS_AT_ONCE // max(1, images[0, 0].numel()))
        with torch.no_grad(), foreign_images():
            parts = [pooled_outputs(self._model, widths, self._as_input(part)) for part in images.split(few)]
        outputs = [torch.cat(part) for part in zip(*parts, strict=True)]
        return [
            self._fit(f"{module} output", output.float().cpu(), (len(images), width))
            for (module, width), output in zip(widths.items(), outputs, strict=True)
        ]

    def _module(self, name: str) -> nn.Module:
        try:
            return self._model.get_submodule(name)
        except AttributeError as error:
            raise WatermarkError(
                f"the model has no module '{name}'",
                hint="The key belongs to another architecture.",
            ) from error

    def _fit(self, name: str, value: Tensor, shape: Sequence[int]) -> Tensor:
        self._sources[name] = None
        if tuple(value.shape) == tuple(shape):
            return value
        if value.ndim != len(shape):
            raise WatermarkError(
                f"expected a tensor of shape {tuple(shape)}, got {tuple(value.shape)}",
                where=name,
                hint="The key belongs to another architecture.",
            )
        if prod(shape) > ROOM * value.numel() + SPARE_ROOM:
            raise WatermarkError(
                f"the key expects {'×'.join(map(str, shape))}, and the model has {'×'.join(map(str, value.shape))}",
                where=name,
                hint="The key belongs to another architecture.",
            )
        self._mismatches[name] = f"{name}: expected {'×'.join(map(str, shape))}, got {'×'.join(map(str, value.shape))}"
        fitted = value.new_zeros(tuple(shape))
        common = tuple(slice(0, min(sizes)) for sizes in zip(value.shape, shape, strict=True))
        fitted[common] = value[common]
        return fitted


def pooled_outputs(model: nn.Module, modules: Iterable[str], images: Tensor) -> list[Tensor]:
    """Run the model in evaluation mode and return these modules' outputs, averaged over space.

    Gradients flow to the model's parameters; its mode is restored.
    """
    training = model.training
    try:
        model.eval()
        with watched(model, modules) as caught:
            model(images.to(next(model.parameters()).device))
    finally:
        model.train(training)
    return list(caught.values())


@contextmanager
def foreign_images() -> Iterator[None]:
    """Images that the model cannot take are the key's fault, whatever the model raises."""
    try:
        yield
    except CanonError:
        raise
    except Exception as error:  # the model's own code may raise anything
        raise WatermarkError(
            f"the model cannot take the key's images: {type(error).__name__}: {error!s:.200}",
            hint="The key belongs to another model.",
        ) from error


@contextmanager
def watched(model: nn.Module, modules: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """These modules' outputs, averaged over space, of the forward pass inside this block."""
    names = list(modules)
    caught: dict[str, Tensor] = {}

    def catch(name: str) -> torch.utils.hooks.RemovableHandle:
        return model.get_submodule(name).register_forward_hook(
            lambda _module, _inputs, output: caught.update({name: spatial_mean(output)})
        )

    handles = [catch(name) for name in names]
    try:
        yield caught
    finally:
        for handle in handles:
            handle.remove()
    for name in names:
        if name not in caught:
            raise WatermarkError("the forward pass does not reach this module", where=name)
        caught[name] = caught.pop(name)  # in the order they were asked for


def spatial_mean(activation: Tensor) -> Tensor:
    """Images × channels, averaged over whatever axes follow; always a new tensor.

    Take it inside a hook: a later in-place operation (`out += identity`, an in-place ReLU) would
    change the activation itself.
    """
    return activation.clone() if activation.ndim == 2 else activation.flatten(2).mean(2)


def read_signs(values: Tensor, message: Message, similarity: float | None = None) -> Reading:
    """Judge carriers that show the repeated message in their signs; zero says nothing."""
    signs = message.signs(len(values))
    if similarity is None:
        similarity = sign_agreement(values, signs)
    return Reading(message.vote(values), float((values * signs).min()), similarity)


def sign_agreement(values: Tensor, signs: Tensor) -> float:
    """Share of values on the right side of zero; zero itself and NaN are on neither."""
    return float((values * signs > 0).float().mean())
