"""uchida17: a message in a projection of mean kernels.

Uchida, Nagai, Sakazawa, Satoh: *Embedding Watermarks into Deep Neural Networks*, ICMR 2017.

For every marked layer take the mean of its weight over output channels, flatten it and join the
results to one vector `w`. With a secret `X ~ N(0, 1)` of shape `|w|×T` the loss gains
`k·Σ_j BCE(σ(wX)_j, b_j)`, `k = 0.01`. Bit `j` is read as `σ(wX)_j > 0.5`; the similarity is the
share of right bits.

Deviations: the message lies in the joined vector of several layers (the last two undivided
convolutions by default) instead of one. The mean over outputs makes output order irrelevant; input
order and scale matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.watermarks.embedding import Embedding
from canon.watermarks.interface import Scheme, Target
from canon.watermarks.key import Key
from canon.watermarks.layers import last_layers, layer_weight
from canon.watermarks.reading import Reader, Reading
from canon.watermarks.schema import require_independent, require_settings, require_tensors

STRENGTH = 0.01


def mean_kernels(weights: Iterable[Tensor]) -> Tensor:
    """The joined means over output channels, one flat vector."""
    return torch.cat([weight.mean(0).flatten() for weight in weights])


def mean_kernel_size(key: Key) -> int:
    """How many numbers the joined means have in the layers of a key."""
    return sum(prod(shape[1:]) for shape in key.shapes.values())


class Projection(Embedding):
    """Adds the projection loss; leaves the projection in the key."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.layers = target.layers
        size = len(mean_kernels(layer_weight(target.model, layer) for layer in target.layers))
        matrix = target.draws.normal("projection", size, len(target.message))
        self.register_buffer("projection", matrix)
        self.register_buffer("bits", target.message.tensor(), persistent=False)

    def penalty(self, model: nn.Module) -> Tensor:
        """`k·Σ BCE`."""
        vector = mean_kernels(layer_weight(model, layer) for layer in self.layers)
        scores = vector @ self.get_buffer("projection")
        return STRENGTH * functional.binary_cross_entropy_with_logits(scores, self.get_buffer("bits"), reduction="sum")


class Uchida17(Scheme):
    """A message in a projection of mean kernels (Uchida et al. 2017)."""

    name: ClassVar[str] = "uchida17"
    reference: ClassVar[str] = "Uchida et al., Embedding Watermarks into DNNs, ICMR 2017"
    trained: ClassVar[tuple[str, ...] | None] = ()
    settled_margin: ClassVar[float] = 0.5

    def default_layers(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        """The last two undivided convolutions, or inner linear layers."""
        return last_layers(model, images, 2)

    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        """One bit for every entry of the mean kernels."""
        return sum(layer_weight(model, layer)[0].numel() for layer in layers)

    def prepare(self, target: Target) -> Embedding:
        """Draw the projection."""
        return Projection(target)

    def check_key(self, key: Key) -> None:
        """A projection of the mean kernels, no carrier of which is zero or there twice."""
        require_settings(key, ())
        require_tensors(key, {"projection": (mean_kernel_size(key), len(key.message))})
        require_independent(key.tensors["projection"], "projection")

    def read(self, reader: Reader, key: Key) -> Reading:
        """`σ(wX) > 0.5`, which is `wX > 0`."""
        return Reading(mean_kernels(reader.marked_weights(key)) @ key.tensors["projection"].float())
