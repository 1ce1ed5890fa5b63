"""ipr_gan: a message in the signs of norm scales.

Ong, Chan, Ng, Fan, Yang: *Protecting Intellectual Property of Generative Adversarial Networks from
Ambiguity Attacks*, CVPR 2021; its white-box half.

The message's bits, repeated over the channels of the chosen norm layers and mapped to `s ∈ {±1}`,
set the signs of the scales at the start, `γ ← |γ|·s`, and the loss `Σ_layers mean_c relu(0.1 − γ_c·s_c)`
of weight 1 keeps them. The similarity is the share of right signs; a bit is read as the mean of all
scales that carry it.

Deviations: published for the norms of GAN generators, here for a classifier's: by default those
behind the last two convolutions that feed a norm directly, or behind the last two linear layers that write to what a
LayerNorm or RMSNorm reads next. The authors' owner string is our message.

Channel order matters; positive scale does not.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from canon.watermarks.embedding import Embedding, hinge
from canon.watermarks.interface import Scheme, Target
from canon.watermarks.key import Key, Setting
from canon.watermarks.layers import layer_weight
from canon.watermarks.norms import last_normalised, norms_of
from canon.watermarks.reading import Reader, Reading, read_signs
from canon.watermarks.schema import require_norms, require_settings, require_tensors

STRENGTH = 1.0


class ScaleSigns(Embedding):
    """Adds the sign loss on norm scales."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.norms = norms_of(target.model, target.examples(), target.layers)
        scales = [layer_weight(target.model, norm) for norm in self.norms.values()]
        self.widths = [len(scale) for scale in scales]
        signs = target.message.signs(sum(self.widths))
        self.register_buffer("signs", signs, persistent=False)
        with torch.no_grad():
            for scale, part in zip(scales, signs.split(self.widths), strict=True):
                scale.copy_(scale.abs() * part)

    def penalty(self, model: nn.Module) -> Tensor:
        """`Σ_layers mean_c relu(0.1 − γ_c·s_c)`."""
        parts = self.get_buffer("signs").split(self.widths)
        scales = [layer_weight(model, norm) for norm in self.norms.values()]
        terms = [hinge(scale, part).mean() for scale, part in zip(scales, parts, strict=True)]
        return STRENGTH * torch.stack(terms).sum()

    def key_settings(self) -> dict[str, Setting]:
        """The norm behind every marked layer."""
        return {"norms": self.norms}


class IprGan(Scheme):
    """A message in the signs of norm scales (Ong et al. 2021)."""

    name: ClassVar[str] = "ipr_gan"
    reference: ClassVar[str] = "Ong et al., Protecting IP of GANs from Ambiguity Attacks, CVPR 2021"
    trained: ClassVar[tuple[str, ...] | None] = ()
    settled_margin: ClassVar[float] = 0.05

    def default_layers(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        """The last two layers with a norm behind them."""
        return last_normalised(model, images, 2)

    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        """One bit for every channel."""
        return sum(len(layer_weight(model, layer)) for layer in layers)

    def prepare(self, target: Target) -> Embedding:
        """Set the signs."""
        return ScaleSigns(target)

    def check_key(self, key: Key) -> None:
        """The norm behind every marked layer, and nothing else."""
        require_settings(key, ("norms",))
        require_tensors(key, {})
        require_norms(key, key.shapes)

    def read(self, reader: Reader, key: Key) -> Reading:
        """Signs of the norm scales."""
        norms = reader.norms(key)
        scales = torch.cat([reader.parameter(norms[layer], "weight", shape[:1]) for layer, shape in key.shapes.items()])
        return read_signs(scales, key.message)
