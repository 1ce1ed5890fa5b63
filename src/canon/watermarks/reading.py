"""Reading numbers out of a model that may not have the shape it was marked in.

An obfuscated model is wider, and its channels lie elsewhere. Reading is still defined: what exists
is read by index, cropped to the expected shape, and what is missing counts as zero. The score of
such a reading is a guess (chance level), so every difference is noted and handed to the caller.

A key is a stranger's data, so what it says about the model is looked up in the model instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Final

import torch
from torch import Tensor, nn

from canon.errors import CanonError, KeyFileError, WatermarkError
from canon.watermarks.key import Key
from canon.watermarks.layers import is_linear, layer_weight, transposed, undivided_layers
from canon.watermarks.message import Message
from canon.watermarks.norms import norms_behind, places_behind, written_norms

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
    margin: float | None = None
    """The least agreement of any carrier with what it should say, above zero if all agree; None: that of the scores."""
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
        """A module's parameter in the expected shape, outputs first, as float32 on the CPU."""
        owner = self._module(module)
        value = getattr(owner, name, None)
        if not isinstance(value, Tensor):
            raise WatermarkError(f"the module has no parameter '{name}'", where=module)
        if name == "weight" and transposed(owner):
            value = value.t()
        return self._fit(f"{module}.{name}", value.detach().float().cpu(), shape)

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every undivided layer's weight, outputs first, as the model has them."""
        return {name: tuple(layer_weight(self._model, name).shape) for name in undivided_layers(self._model)}

    def norms(self, key: Key, images: Tensor | None = None) -> dict[str, str]:
        """The norm behind every marked layer, found in the model; a key that says otherwise is refused."""
        if images is None:
            images = self._example
        if images is not None:
            pairs = self._watched(norms_behind, images[:1])
        elif any(is_linear(self._module(layer)) for layer in key.shapes):
            raise WatermarkError(
                "the norms behind linear layers are found by running the model once", hint="Give an example input."
            )
        else:
            pairs = written_norms(self._model)
        return self._confirmed(key, pairs)

    def places(self, key: Key, images: Tensor) -> dict[str, str]:
        """Where the units of every marked layer are read, found in the model; a key that says otherwise is refused."""
        return self._confirmed(key, self._watched(places_behind, images[:1]))

    @staticmethod
    def _confirmed(key: Key, pairs: Mapping[str, str]) -> dict[str, str]:
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

    def _watched(self, find: Callable[[nn.Module, Tensor], dict[str, str]], images: Tensor) -> dict[str, str]:
        with foreign_images():
            return find(self._model, self._as_input(images))

    def _as_input(self, images: Tensor) -> Tensor:
        first = next(self._model.parameters())
        return images.to(first.device, first.dtype if images.is_floating_point() else images.dtype)

    def activations(self, widths: Mapping[str, int], images: Tensor) -> list[Tensor]:
        """The modules' outputs on these images, averaged over space: images × width, on the CPU."""
        for module in widths:
            self._module(module)
        few = max(1, PIXELS_AT_ONCE // max(1, images[0].numel() // (images.shape[1] if images.ndim == 4 else 1)))
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
    """These modules' outputs, averaged over space or over a text, of the forward pass inside this block."""
    names = list(modules)
    caught: dict[str, Tensor] = {}

    def catch(name: str) -> torch.utils.hooks.RemovableHandle:
        return model.get_submodule(name).register_forward_hook(
            lambda module, _inputs, output: caught.update({name: spatial_mean(output, last=is_linear(module))})
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


def spatial_mean(activation: Tensor, last: bool = False) -> Tensor:
    """Images × channels, averaged over all other axes; always a new tensor. Channels are the second axis, or the last.

    Take it inside a hook: a later in-place operation (`out += identity`, an in-place ReLU) would
    change the activation itself.
    """
    if activation.ndim == 2:
        return activation.clone()
    return activation.flatten(1, -2).mean(1) if last else activation.flatten(2).mean(2)


def read_signs(values: Tensor, message: Message, similarity: float | None = None) -> Reading:
    """Judge carriers that show the repeated message in their signs; zero says nothing."""
    signs = message.signs(len(values))
    if similarity is None:
        similarity = sign_agreement(values, signs)
    return Reading(message.vote(values), float((values * signs).min()), similarity)


def sign_agreement(values: Tensor, signs: Tensor) -> float:
    """Share of values on the right side of zero; zero itself and NaN are on neither."""
    return float((values * signs > 0).float().mean())
