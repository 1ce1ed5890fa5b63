"""deepipr: passports whose scales carry the message in their signs.

Fan, Ng, Chan, Yang: *DeepIPR: Deep Neural Network Ownership Verification with Passports*, IEEE TPAMI
2021; its schemes V2 and V3, in which passports are not shipped.

A marked convolution's norm has a public path with plain learnable `γ, β`, which ships, and a private
one where `γ` is the spatial mean of `conv(P_γ)` and `β` that of `conv(P_β)`, with the *same*
convolution weights. Every batch sums the task loss over both paths and adds
`Σ α·relu(0.1 − bγ) + 1e-5·Σγ²`, `α = 0.1`. The similarity is `mean(sign(γ) == b)` per layer, averaged.
`private_accuracy` runs the task with the passports.

Defaults: the last eight convolutions that feed a norm; a 64-bit message, repeated over the channels;
passports uniform in [−1, 1] with 4×4 cells.

Deviations: the private path has running statistics of its own. Shared ones, as published, average
two different distributions and cost the shipped model accuracy. Passports from images of a
pretrained network are left out.

Input order and scale matter (the passport has the input's layout), and output order.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from canon.watermarks.embedding import Embedding
from canon.watermarks.interface import Target
from canon.watermarks.layers import layer_weight
from canon.watermarks.norms import last_normalised, norms_of
from canon.watermarks.passports import PassportBranch, PassportScheme


class DeepIpr(PassportScheme):
    """Passports whose scales carry the message in their signs (Fan et al. 2021)."""

    name: ClassVar[str] = "deepipr"
    reference: ClassVar[str] = "Fan et al., DeepIPR, IEEE TPAMI 2021"
    trained: ClassVar[tuple[str, ...] | None] = ("mean", "variance")
    default_bits: ClassVar[int] = 64
    settled_margin: ClassVar[float] = 0.03

    def default_layers(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        """The last eight layers with a norm behind them."""
        return last_normalised(model, images, 8)

    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        """One bit for every channel."""
        return sum(len(layer_weight(model, layer)) for layer in layers)

    def prepare(self, target: Target) -> Embedding:
        """Draw the passports."""
        norms_of(target.model, target.examples(), target.layers)
        return PassportBranch(target)
