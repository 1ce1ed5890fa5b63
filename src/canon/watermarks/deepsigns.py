"""deepsigns: a message in the mean activation of one class.

Darvish Rouhani, Chen, Koushanfar: *DeepSigns: An End-to-End Watermarking Framework for Ownership
Protection of Deep Neural Networks*, ASPLOS 2019; its white-box half for intermediate layers.

For the activation `f` of a marked layer there are trainable class centres `C`, and a secret
`A ~ N(0, 1)` of shape `T×M`. The loss is `CE + γ1·(L1 + L2 + L3) + γ2·L4`:

- `L1 = mean ‖f − C_y‖²` pulls activations to the centre of their class,
- `L2 = mean relu(1 − ‖f − C_k‖²)` pushes the nearest other centre `C_k` away,
- `L3 = Σ_k |1 − ‖C_k‖²|` keeps the centres on the unit sphere,
- `L4 = mean BCE(σ(A·C_c), bits)` writes the message into the centre of the chosen class `c`.

To read, average the activations of stored training images of class `c` to `μ`; bit `j` is
`σ(Aμ)_j > 0.5`. The similarity is the share of right bits.

Deviations: `f` is the pre-activation (output of the norm that the layer feeds), averaged over space
and divided by `√M`, so that a normalised layer's activation has about unit length, as `L3` expects.
`L2` is the hinge above. The message is shared out over the marked layers by their width; by default these
are the last two convolutions that feed a norm. `γ1 = 0.1` and `γ2 = 3`, on the mean over bits, for the
short runs here (published: 0.01).
`L4` is also applied to the mean activation of the stored images, which ride along in every batch: without
this a short run leaves activations too far from the centre. They ride along, and do not run in
evaluation mode, because weights would then chase the running statistics without end.

Of a linear layer, `f` is its own output; of a text, averaged over its tokens. The class of a text whose tokens all
have a label, as in a language model, is the last one's. By default the last two inner linear layers are
marked in a model that is made of these.

Unit order and scale at the marked layers matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.watermarks.data import classes_of
from canon.watermarks.embedding import Embedding, forward
from canon.watermarks.interface import Scheme, Target
from canon.watermarks.key import Key, Setting
from canon.watermarks.layers import layer_weight
from canon.watermarks.norms import last_hidden, places_of
from canon.watermarks.reading import Reader, Reading, watched
from canon.watermarks.schema import (
    integer,
    require_independent,
    require_inputs,
    require_norms,
    require_settings,
    require_tensors,
)

CENTRE_STRENGTH = 0.1
MESSAGE_STRENGTH = 3.0
SAMPLES = 8
MOST_CLASSES = 1_000_000


class ClassCentres(Embedding):
    """Adds the four terms; leaves the projections and the class's images in the key."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.norms = places_of(target.model, target.examples(), target.layers)
        self.widths = [len(layer_weight(target.model, place)) for place in self.norms.values()]
        draws, data = target.draws, target.dataset
        classes = classes_of(data.train_labels)
        present = classes.unique()
        self.chosen_class = int(present[draws.whole("class", len(present))])
        members = (classes == self.chosen_class).nonzero().flatten()[:SAMPLES]
        self.register_buffer("samples", data.images_at(data.train_images[members], "cpu"))
        self.parts = shared_out(len(target.message), self.widths)
        self.register_buffer("bits", target.message.tensor(), persistent=False)
        self.centres = nn.ParameterList()
        for position, (width, part) in enumerate(zip(self.widths, self.parts, strict=True)):
            matrix = draws.normal(f"projection{position}", part, width)
            self.register_buffer(f"projection{position}", matrix)
            centres = draws.normal(f"centres{position}", data.classes, width)
            self.centres.append(nn.Parameter(functional.normalize(centres, dim=1)))

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """`CE + γ1·(L1 + L2 + L3) + γ2·L4` for every marked layer."""
        samples = self.get_buffer("samples")
        with watched(model, self.norms.values()) as caught:
            logits = forward(model, torch.cat([images, samples]))[: len(images)]
        loss = self.task_loss(logits, labels)
        bits = self.get_buffer("bits").split(self.parts)
        for position, norm in enumerate(self.norms.values()):
            root = self.widths[position] ** 0.5
            batch, stored = (caught[norm].float() / root).split([len(images), len(samples)])
            loss = loss + self.mark_strength * CENTRE_STRENGTH * self._shape(position, batch, classes_of(labels))
            for carrier in (self.centres[position][self.chosen_class], stored.mean(0)):
                scores = self.get_buffer(f"projection{position}") @ carrier
                message = functional.binary_cross_entropy_with_logits(scores, bits[position])
                loss = loss + self.mark_strength * MESSAGE_STRENGTH * message
        return loss, logits

    def _shape(self, position: int, activation: Tensor, labels: Tensor) -> Tensor:
        """`L1 + L2 + L3` of one layer."""
        centres = self.centres[position]
        distances = (activation[:, None] - centres[None]).square().sum(2)
        own = distances.gather(1, labels[:, None]).squeeze(1)
        others = distances.scatter(1, labels[:, None], torch.inf).min(1).values
        unit = (1 - centres.square().sum(1)).abs().sum()
        total: Tensor = own.mean() + functional.relu(1 - others).mean() + unit
        return total

    def key_settings(self) -> dict[str, Setting]:
        """Where the units of every marked layer are read, and the chosen class."""
        return {"norms": self.norms, "class": self.chosen_class}

    def key_tensors(self) -> dict[str, Tensor]:
        """Projections and samples; the centres were for training alone."""
        state = self.state_dict()
        return {name: value for name, value in state.items() if not name.startswith("centres")}


def shared_out(total: int, widths: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to `widths` that sum to `total`.

    >>> shared_out(128, [64, 128])
    [42, 86]
    """
    bounds = [total * sum(widths[:position]) // sum(widths) for position in range(len(widths) + 1)]
    return [after - before for before, after in pairwise(bounds)]


class DeepSigns(Scheme):
    """A message in the mean activation of one class (Darvish Rouhani et al. 2019)."""

    name: ClassVar[str] = "deepsigns"
    reference: ClassVar[str] = "Darvish Rouhani et al., DeepSigns, ASPLOS 2019"
    trained: ClassVar[tuple[str, ...] | None] = ()
    settled_margin: ClassVar[float] = 0.1

    def default_layers(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        """The last two convolutions that feed a norm, or inner linear layers."""
        return last_hidden(model, images, 2)

    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        """One bit for every unit."""
        return sum(len(layer_weight(model, layer)) for layer in layers)

    def prepare(self, target: Target) -> Embedding:
        """Draw class, projections and centres."""
        return ClassCentres(target)

    def check_key(self, key: Key) -> None:
        """The norm behind every marked layer, images of one class, and a projection for every layer's part."""
        require_settings(key, ("norms", "class"))
        require_norms(key, key.shapes)
        integer(key, "class", 0, MOST_CLASSES)
        widths = [shape[0] for shape in key.shapes.values()]
        parts = shared_out(len(key.message), widths)
        projections = {
            f"projection{position}": (part, width)
            for position, (part, width) in enumerate(zip(parts, widths, strict=True))
        }
        require_tensors(key, projections, besides=("samples",))
        require_inputs(key, "samples", SAMPLES)
        for name, (part, _) in projections.items():
            if part:
                require_independent(key.tensors[name].T, name)

    def read(self, reader: Reader, key: Key) -> Reading:
        """Project the mean activation of the stored images."""
        places = reader.places(key, key.tensors["samples"])
        widths = {places[layer]: shape[0] for layer, shape in key.shapes.items()}
        outputs = reader.activations(widths, key.tensors["samples"])
        scores = [
            key.tensors[f"projection{position}"].float() @ (output.mean(0) / output.shape[1] ** 0.5)
            for position, output in enumerate(outputs)
        ]
        return Reading(torch.cat(scores))
