"""passport_aware: passports behind a learned transform, on every norm.

Zhang, Chen, Liao, Zhang, Hua, Yu: *Passport-aware Normalization for Deep Model Protection*,
NeurIPS 2020.

As deepipr, with running statistics of its own for the private path, and with `γ` and `β` passed
through one bias-free MLP `c → c/4 → LeakyReLU → c` that both share. Sign loss and verification use
`γ` before it. The private branch (passports, MLPs, statistics) is the owner's and lies in the key,
outside of the shipped model.

Defaults: a passport on every convolution that feeds a norm. The private path runs through the whole
network, so every Conv and Linear layer counts as watermark-bearing. 128 bits, repeated over the
channels; passports uniform in [−1, 1] with 4×4 cells; `α = 1`, ten times deepipr's, since a depthwise
kernel or a stem has few weights to turn a sign with and the MLP lets the task resist.

Input order and scale matter, and output order.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.watermarks.embedding import Embedding
from canon.watermarks.interface import Target
from canon.watermarks.key import Key
from canon.watermarks.layers import layer_weight, weighted_layers
from canon.watermarks.norms import norms_behind
from canon.watermarks.passports import PassportBranch, PassportScheme

REDUCTION = 4


class TransformedBranch(PassportBranch):
    """A private branch with one MLP for every layer's scale and shift."""

    sign_strength: ClassVar[float] = 1.0

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.transforms = nn.ModuleList([bottleneck(width, target.generator) for width in self.widths])

    def transform(self, position: int, value: Tensor) -> Tensor:
        """`c → c/4 → LeakyReLU → c`."""
        result = self.transforms[position](value)
        assert isinstance(result, Tensor), "a Sequential of Linear layers"
        return result


def bottleneck(width: int, generator: torch.Generator) -> nn.Sequential:
    """The bias-free MLP of one layer, drawn from `generator` alone."""
    hidden = max(1, width // REDUCTION)
    built = nn.Sequential(
        nn.utils.skip_init(nn.Linear, width, hidden, bias=False),
        nn.LeakyReLU(),
        nn.utils.skip_init(nn.Linear, hidden, width, bias=False),
    )
    with torch.no_grad():
        for parameter in built.parameters():
            bound = (3 / parameter.shape[1]) ** 0.5
            parameter.uniform_(-bound, bound, generator=generator)
    return built


class PassportAware(PassportScheme):
    """Passports behind a learned transform, on every norm (Zhang et al. 2020)."""

    name: ClassVar[str] = "passport_aware"
    reference: ClassVar[str] = "Zhang et al., Passport-aware Normalization, NeurIPS 2020"
    trained: ClassVar[tuple[str, ...] | None] = ("mean", "variance", "transforms")
    settled_margin: ClassVar[float] = 0.03

    def default_layers(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        """All Conv and Linear layers."""
        return tuple(weighted_layers(model))

    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        """One bit for every channel with a passport."""
        pairs = norms_behind(model, images)
        return sum(len(layer_weight(model, layer)) for layer in layers if layer in pairs)

    def prepare(self, target: Target) -> Embedding:
        """Draw passports and transforms."""
        return TransformedBranch(target)

    def private_shapes(self, key: Key) -> dict[str, tuple[int, ...]]:
        """The passports and their MLPs."""
        shapes = super().private_shapes(key)
        norms = key.settings["norms"]
        assert isinstance(norms, dict), "checked by the schema"
        widths = [shape[0] for layer, shape in key.shapes.items() if layer in norms]
        for position, width in enumerate(widths):
            hidden = max(1, width // REDUCTION)
            shapes[f"transforms.{position}.0.weight"] = (hidden, width)
            shapes[f"transforms.{position}.2.weight"] = (width, hidden)
        return shapes

    def transformed(self, key: Key, position: int, value: Tensor) -> Tensor:
        """The layer's MLP, from the key."""
        hidden = functional.linear(value, key.tensors[f"transforms.{position}.0.weight"])
        return functional.linear(functional.leaky_relu(hidden), key.tensors[f"transforms.{position}.2.weight"])
