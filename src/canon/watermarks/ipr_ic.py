"""ipr_ic: a message in the signs of keyed hidden units on a trigger batch.

Lim, Chan, Ng, Fan, Yang: *Protect, show, attend and tell: Empowering image captioning models with
ownership protection*, Pattern Recognition 122, 2022.

Published for captioning: a key `k ∈ {±1}^512` is multiplied with the hidden state `h` of the LSTM,
and the loss gains `α·mean relu(0.1 − (k∘h)·s)`, `α = 0.1`, with the owner's signs `s`. The owner shows
`mean(sign(k∘h) == s)` with the right key.

This is an analogue, because a convolutional classifier has no LSTM. The hidden state is replaced by
the pre-activation of one convolution (the output of the norm it feeds, before the nonlinearity),
averaged over space and over a fixed trigger batch of training images that the key holds. The signs
`s` are the message, repeated over the units. What differs further: the network computes without the
key (it enters the loss and the reading alone), so a forger's key does not spoil the task; and the
reading depends on the trigger images, as the published one does on the caption being written.
The trigger goes through the network beside every batch and is normalised with it. A pass of its own
would have statistics of its own, which leave nothing but the norm's shift to carry the signs; with
running averages instead, training can keep ahead of them, and the signs are gone when it ends. Each
unit weighs `0.006` in the loss, where the authors weigh the mean of all by 0.1: runs are short here,
and layers of 192 to 1280 units must all be filled.

By default the last convolution that feeds a norm is marked. The units of a linear layer are its own outputs, averaged
over the tokens of a text; the last inner one is marked in a model that is made of these. Unit order matters.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from canon.watermarks.embedding import Embedding, forward, hinge
from canon.watermarks.interface import Scheme, Target
from canon.watermarks.key import Key, Setting
from canon.watermarks.layers import layer_weight
from canon.watermarks.norms import last_hidden, places_of
from canon.watermarks.reading import Reader, Reading, read_signs, watched
from canon.watermarks.schema import refused, require_inputs, require_norms, require_settings, require_tensors

STRENGTH = 0.006
TRIGGERS = 16


class KeyedUnits(Embedding):
    """Adds the sign loss on keyed units; leaves key signs and trigger in the key."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.norms = places_of(target.model, target.examples(), target.layers)
        widths = [len(layer_weight(target.model, norm)) for norm in self.norms.values()]
        self.widths = widths
        images = target.dataset.train_images
        chosen = target.draws.order("trigger", len(images))[:TRIGGERS]
        trigger = target.dataset.images_at(images[chosen.to(images.device)], "cpu")
        signs = target.draws.coins("key_signs", sum(widths)) * 2.0 - 1.0
        self.register_buffer("trigger", trigger)
        self.register_buffer("key_signs", signs)
        self.register_buffer("signs", target.message.signs(sum(widths)), persistent=False)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy and `0.006·Σ relu(0.1 − (k∘h)·s)`."""
        trigger = self.get_buffer("trigger").to(images.dtype)
        with watched(model, self.norms.values()) as outputs:
            logits = forward(model, torch.cat([images, trigger]))[: len(images)]
        units = torch.cat([output[len(images) :].float().mean(0) for output in outputs.values()])
        signs = self.get_buffer("signs") * self.get_buffer("key_signs")
        loss = self.task_loss(logits, labels)
        return loss + self.mark_strength * STRENGTH * hinge(units, signs).sum(), logits

    def key_settings(self) -> dict[str, Setting]:
        """Where the units of every marked layer are read."""
        return {"norms": self.norms}


class IprIc(Scheme):
    """Signs of keyed hidden units on a trigger batch (after Lim et al. 2022)."""

    name: ClassVar[str] = "ipr_ic"
    reference: ClassVar[str] = "Lim et al., Protect, show, attend and tell, Pattern Recognition 2022"
    trained: ClassVar[tuple[str, ...] | None] = ()
    settled_margin: ClassVar[float] = 0.03

    def default_layers(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        """The last convolution that feeds a norm, or inner linear layer."""
        return last_hidden(model, images, 1)

    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        """One bit for every unit."""
        return sum(len(layer_weight(model, layer)) for layer in layers)

    def prepare(self, target: Target) -> Embedding:
        """Draw key signs and trigger."""
        return KeyedUnits(target)

    def check_key(self, key: Key) -> None:
        """The norm behind every marked layer, trigger images, and a sign for every unit."""
        require_settings(key, ("norms",))
        require_norms(key, key.shapes)
        require_tensors(key, {"key_signs": (sum(shape[0] for shape in key.shapes.values()),)}, besides=("trigger",))
        require_inputs(key, "trigger", TRIGGERS)
        if not bool((key.tensors["key_signs"].abs() == 1).all()):
            raise refused("the tensor 'key_signs' must hold −1 and 1 alone")

    def read(self, reader: Reader, key: Key) -> Reading:
        """Signs of the keyed units on the stored trigger."""
        places = reader.places(key, key.tensors["trigger"])
        widths = {places[layer]: shape[0] for layer, shape in key.shapes.items()}
        outputs = reader.activations(widths, key.tensors["trigger"])
        units = torch.cat([output.mean(0) for output in outputs])
        return read_signs(units * key.tensors["key_signs"].float(), key.message)
