"""Passports: norm scales and shifts that a layer's own weights compute from a secret input.

Shared by deepipr and passport_aware. With a passport `P` of the layout of a convolution's input, the
private scale is `γ = spatial mean of conv(P)`. A convolution is linear, so this is `γ_o = ⟨W_o, K⟩`,
where `K` is the mean over all output positions of the patches of `P` that the kernel sees. The key
keeps `K`, which is exact, and small for layers with large images. The passport of a linear layer is a text: rows of
its inputs, of which `K` is the mean.

The private path is the model with the scales and shifts of chosen norms replaced, and with running
statistics of its own at every batch norm. It exists while training and when the owner runs it; the shipped
model is the public path alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from canon.errors import WatermarkError
from canon.watermarks.data import Dataset
from canon.watermarks.derive import Draws
from canon.watermarks.embedding import Embedding, forward, hinge
from canon.watermarks.interface import Scheme, Target
from canon.watermarks.key import Key, Setting
from canon.watermarks.layers import layer_weight
from canon.watermarks.norms import norms_behind
from canon.watermarks.reading import Reader, Reading, read_signs, sign_agreement
from canon.watermarks.schema import (
    LARGEST_STATISTIC,
    refused,
    require_independent,
    require_norms,
    require_numbers,
    require_settings,
    require_tensors,
)
from canon.watermarks.train import accuracy

SCALE_DECAY = 1e-5
PASSPORT_SIZE = 4


def mean_patch(passport: Tensor, convolution: nn.Conv2d) -> Tensor:
    """`K` of a passport `1×C×H×W`: one flat vector, `⟨W_o, K⟩ = mean conv(P)_o`."""
    patches = functional.unfold(
        functional.pad(passport, convolution._reversed_padding_repeated_twice),
        kernel_size=(convolution.kernel_size[0], convolution.kernel_size[1]),
        dilation=(convolution.dilation[0], convolution.dilation[1]),
        stride=(convolution.stride[0], convolution.stride[1]),
    )
    return patches.mean(2)[0]


def draw_passport(layer: nn.Module, inputs: int, draws: Draws, name: str) -> Tensor:
    """`K` of a passport that is uniform in [−1, 1]: an image for a convolution, a text for a linear layer."""
    passport = draws.uniform(name, 1, inputs, PASSPORT_SIZE, PASSPORT_SIZE) * 2 - 1
    return mean_patch(passport, layer) if isinstance(layer, nn.Conv2d) else passport.mean((0, 2, 3))


class PassportBranch(Embedding):
    """Trains the private path beside the public one; leaves passports and branch in the key."""

    sign_strength: ClassVar[float] = 0.1
    """Weight `α` of the sign loss."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        pairs = norms_behind(target.model, target.examples())
        self.norms = {layer: pairs[layer] for layer in target.layers if layer in pairs}
        if not self.norms:
            raise WatermarkError(
                "none of these layers is a convolution followed by a batch norm, or a linear layer before a norm over "
                "channels: these can take a passport",
                where=", ".join(target.layers),
            )
        self.widths: list[int] = []
        for position, (layer, norm) in enumerate(self.norms.items()):
            module, behind = target.model.get_submodule(layer), target.model.get_submodule(norm)
            if isinstance(behind, nn.BatchNorm2d) and type(behind) is not nn.BatchNorm2d:
                raise WatermarkError("passports need a plain BatchNorm2d", where=norm)
            outputs, inputs = layer_weight(target.model, layer).shape[:2]
            self.widths.append(outputs)
            self.register_buffer(f"scale{position}", draw_passport(module, inputs, target.draws, f"scale {layer}"))
            self.register_buffer(f"shift{position}", draw_passport(module, inputs, target.draws, f"shift {layer}"))
        norms = {name: module for name, module in target.model.named_modules() if isinstance(module, nn.BatchNorm2d)}
        self.all_norms = list(norms)
        for position, norm_module in enumerate(norms.values()):
            self.register_buffer(f"mean{position}", torch.zeros(norm_module.num_features))
            self.register_buffer(f"variance{position}", torch.ones(norm_module.num_features))
        signs = target.message.signs(sum(self.widths))
        self.register_buffer("signs", signs, persistent=False)

    def transform(self, position: int, value: Tensor) -> Tensor:
        """What the private norm is given for a scale or shift; the passport's own by default."""
        return value

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Task loss on both paths, `Σ α·relu(0.1 − bγ)` and `1e-5·Σγ²`."""
        logits = forward(model, images)
        scales, affine = [], {}
        for position, (layer, norm) in enumerate(self.norms.items()):
            rows = layer_weight(model, layer).flatten(1)
            scales.append(rows @ self.get_buffer(f"scale{position}"))
            shift = self.transform(position, rows @ self.get_buffer(f"shift{position}"))
            affine[norm] = (self.transform(position, scales[-1]), shift)
        statistics = {
            name: (self.get_buffer(f"mean{position}"), self.get_buffer(f"variance{position}"))
            for position, name in enumerate(self.all_norms)
        }
        with private_path(model, affine, statistics):
            private = forward(model, images)
        joined = torch.cat(scales)
        marks = self.sign_strength * hinge(joined, self.get_buffer("signs")).sum()
        marks = marks + SCALE_DECAY * joined.square().sum()
        task = self.task_loss(logits, labels) + self.task_loss(private, labels)
        return task + self.mark_strength * marks, logits

    def key_settings(self) -> dict[str, Setting]:
        """Layers with a passport and their norms, and all batch norms in the order of their statistics."""
        return {"norms": self.norms, "all norms": self.all_norms}


@contextmanager
def private_path(
    model: nn.Module,
    affine: Mapping[str, tuple[Tensor, Tensor]],
    statistics: Mapping[str, tuple[Tensor, Tensor]],
) -> Iterator[None]:
    """Run `model` on the private path inside this block.

    `statistics` has the private running mean and variance of every batch norm, which a training pass
    updates; `affine` has the private scale and shift where there is a passport. The public
    statistics stay as they are. A norm over channels has no statistics.
    """
    norms: list[tuple[nn.BatchNorm2d, float | None]] = []
    handles = []
    for name, moments in statistics.items():
        norm = model.get_submodule(name)
        assert isinstance(norm, nn.BatchNorm2d), f"{name} is a batch norm"
        norms.append((norm, norm.momentum))
        handles.append(_divert(norm, moments, affine.get(name, (norm.weight, norm.bias))))
    handles += [_rescale(model.get_submodule(name), *pair) for name, pair in affine.items() if name not in statistics]
    try:
        for norm, _ in norms:
            norm.momentum = 0.0
        yield
    finally:
        for norm, momentum in norms:
            norm.momentum = momentum
        for handle in handles:
            handle.remove()


def _divert(
    norm: nn.BatchNorm2d, moments: tuple[Tensor, Tensor], affine: tuple[Tensor, Tensor]
) -> torch.utils.hooks.RemovableHandle:
    """Replace a norm's output by the private one."""

    def private(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return functional.batch_norm(inputs[0], *moments, *affine, training=module.training, eps=norm.eps)

    return norm.register_forward_hook(private)


def _rescale(norm: nn.Module, scale: Tensor, shift: Tensor) -> torch.utils.hooks.RemovableHandle:
    """Replace the output of a norm over channels by the private one; RMSNorm gains a shift."""
    bare = {name: torch.zeros_like(value) for name, value in norm.named_parameters()}
    inside = False

    def private(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        nonlocal inside
        if inside:
            return None
        inside = True
        try:
            scaled: Tensor = functional_call(module, {**bare, "weight": scale}, inputs)
        finally:
            inside = False
        return scaled + shift

    return norm.register_forward_hook(private)


class PassportScheme(Scheme):
    """What deepipr and passport_aware have in common."""

    def check_key(self, key: Key) -> None:
        """Passports for layers with a norm behind them, and the statistics of the private path."""
        require_settings(key, ("norms", "all norms"))
        norms, names = key.settings["norms"], key.settings["all norms"]
        if not isinstance(norms, Mapping) or not norms or not set(norms) <= set(key.shapes):
            raise refused("the setting 'norms' must name the norms behind marked layers")
        require_norms(key, norms)
        averaging = {norm for layer, norm in norms.items() if len(key.shapes[layer]) > 2}
        if not isinstance(names, list) or len(set(names)) != len(names) or not averaging <= set(names):
            raise refused("the setting 'all norms' must name every batch norm of the model once")
        shapes = self.private_shapes(key)
        statistics = [f"{kind}{position}" for kind in ("mean", "variance") for position in range(len(names))]
        widths = {
            name: (len(key.tensors[name]),) for name in statistics if name in key.tensors and key.tensors[name].ndim
        }
        require_tensors(key, {**dict.fromkeys(statistics, (0,)), **widths, **shapes}, LARGEST_STATISTIC)
        for name, shape in shapes.items():
            require_numbers(key, name, shape)
        for position in range(len(_norms(key))):
            for name in (f"scale{position}", f"shift{position}"):
                require_independent(key.tensors[name][:, None], name)

    def private_shapes(self, key: Key) -> dict[str, tuple[int, ...]]:
        """The tensors of the private path and their shapes, but for running statistics."""
        sizes = [prod(key.shapes[layer][1:]) for layer in _norms(key)]
        return {f"{kind}{at}": (size,) for kind in ("scale", "shift") for at, size in enumerate(sizes)}

    def read(self, reader: Reader, key: Key) -> Reading:
        """Signs of the private scales: `mean(sign(γ) == b)` per layer, averaged over layers."""
        scales = [
            reader.weight(layer, key.shapes[layer]).flatten(1) @ key.tensors[f"scale{position}"].float()
            for position, layer in enumerate(_norms(key))
        ]
        joined = torch.cat(scales)
        parts = key.message.signs(len(joined)).split([len(scale) for scale in scales])
        shares = [sign_agreement(scale, part) for scale, part in zip(scales, parts, strict=True)]
        return read_signs(joined, key.message, similarity=sum(shares) / len(shares))

    def transformed(self, key: Key, position: int, value: Tensor) -> Tensor:
        """What the private norm is given for a scale or shift; the passport's own by default."""
        return value

    def private_accuracy(self, model: nn.Module, key: Key, dataset: Dataset) -> float:
        """Test accuracy with the owner's passports, on a model of the shape that was marked."""
        self.extract(model, key)
        device = next(model.parameters()).device
        owned = replace(key, tensors={name: value.to(device) for name, value in key.tensors.items()})
        affine = {}
        with torch.no_grad():
            for position, (layer, norm) in enumerate(_norms(key).items()):
                rows = layer_weight(model, layer).flatten(1)
                affine[norm] = (
                    self.transformed(owned, position, rows @ owned.tensors[f"scale{position}"]),
                    self.transformed(owned, position, rows @ owned.tensors[f"shift{position}"]),
                )
        names = key.settings["all norms"]
        assert isinstance(names, list), "written by key_settings"
        statistics = {
            str(name): (owned.tensors[f"mean{position}"], owned.tensors[f"variance{position}"])
            for position, name in enumerate(names)
        }
        with private_path(model, affine, statistics):
            return accuracy(model, dataset)


def _norms(key: Key) -> Mapping[str, str]:
    """Layers with a passport and their norms, in the order of the passports; a key file keeps only that of layers."""
    norms = key.settings["norms"]
    assert isinstance(norms, Mapping), "written by key_settings"
    return {layer: norms[layer] for layer in key.shapes if layer in norms}
