"""riga21: a message that a secret network reads from mean kernels, hidden from a detector.

Wang, Kerschbaum: *RIGA: Covert and Robust White-Box Watermarking of Deep Neural Networks*,
WWW 2021.

`w` is as in uchida17: joined means of the marked weights over output channels. A secret extractor
`F` (Linear 512, LeakyReLU 0.2, Linear T, sigmoid) reads the message; a detector `D` (Linear 512,
LeakyReLU 0.2, Linear 1) tries to tell the *sorted* `w` from unmarked ones. Every epoch `D` takes 5
steps (own against a bank of unmarked vectors, weights clipped to ±0.1), `F` takes 20 steps (own `w`
to the message, bank to random bits, BCE), then the host trains with
`λ1·Σ BCE(F(w), m) + λ2·D(sort w)`, `λ1 = 0.05`, `λ2 = 0.1`. The similarity is the share of bits with
`|m − F(w)| < 0.5`.

Deviations:
- Unmarked vectors weigh ten times the own one in the loss of `F`; with less, `F` learns to say the
  message to anyone. Even so its bits lean the same way on an unmarked model, so chance level spreads
  wider than independent bits would (0.35 to 0.78 was seen).
- The bank stands in for independently trained models, which would cost a training run each: the
  starting `w` with more and more noise, so that `F` does not read the message from the model that
  training began with; Gaussian vectors with the moments of `w`; shuffles of `w`, entry by entry and
  channel by channel, so that `F` says nothing about a model whose channels lie elsewhere: it would else
  know its own model by what all channels have in common, such as kernels of which only the centre was
  ever trained.
- `w` is centred and scaled by its moments at the start, which the key stores; raw means of hundreds
  of weights are too small for `F` to see. `F` and `D` train with RMSprop at 1e-3 for the short runs
  here, where the authors use 5e-5 for hundreds of epochs.
- `D` is a critic whose score is bounded by tanh, so `λ2` cannot outgrow the task.
- By default the last two undivided convolutions are marked.

Input order and scale matter; output order does not.
"""

from __future__ import annotations

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
from canon.watermarks.schema import require_independent, require_positive, require_settings, require_tensors
from canon.watermarks.uchida17 import mean_kernel_size, mean_kernels

MESSAGE_STRENGTH = 0.05
COVERT_STRENGTH = 0.1
DETECTOR_STEPS = 5
EXTRACTOR_STEPS = 20
HIDDEN = 512
BANK_PART = 16
NOISIEST = 2.0
OTHERS = 10
CLIP = 0.1
RATE = 1e-3


def network(inputs: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Linear, LeakyReLU 0.2, Linear; drawn from `generator` alone."""
    built = nn.Sequential(
        nn.utils.skip_init(nn.Linear, inputs, HIDDEN),
        nn.LeakyReLU(0.2),
        nn.utils.skip_init(nn.Linear, HIDDEN, outputs),
    )
    with torch.no_grad():
        for layer in (built[0], built[2]):
            assert isinstance(layer, nn.Linear), "built above"
            bound = layer.in_features**-0.5
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)
    return built


class Riga(Embedding):
    """Trains extractor and detector beside the host; leaves the extractor in the key."""

    others: ClassVar[float] = OTHERS
    """How much unmarked vectors weigh beside the own one in the loss of the extractor."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.layers = target.layers
        vector = self._raw(target.model).detach()
        self.register_buffer("centre", vector.mean())
        self.register_buffer("unit", vector.std().clamp(min=1e-12))
        self.extractor = network(len(vector), len(target.message), target.generator)
        self.detector = network(len(vector), 1, target.generator)
        self.register_buffer("start", self.vector(target.model).detach(), persistent=False)
        shapes = [layer_weight(target.model, layer).shape for layer in self.layers]
        self.blocks = [(shape[1], prod(shape[2:])) for shape in shapes]
        self.register_buffer("bits", target.message.tensor(), persistent=False)

    def _raw(self, model: nn.Module) -> Tensor:
        return mean_kernels(layer_weight(model, layer) for layer in self.layers)

    def vector(self, model: nn.Module) -> Tensor:
        """The joined mean kernels in the key's units."""
        return (self._raw(model) - self.get_buffer("centre")) / self.get_buffer("unit")

    def _bank(self, vector: Tensor) -> Tensor:
        """Vectors like those of models without the mark, freshly drawn."""
        shape = (BANK_PART, len(vector))
        amounts = torch.linspace(0, NOISIEST, BANK_PART, device=vector.device)[:, None]
        near_start = self.get_buffer("start") + amounts * torch.randn(shape, device=vector.device)
        gaussian = torch.randn(shape, device=vector.device) * vector.std() + vector.mean()
        order = torch.rand(shape, device=vector.device).argsort(1)
        return torch.cat([near_start, gaussian, vector[order], self._moved(vector)])

    def _moved(self, vector: Tensor) -> Tensor:
        """The vector with the channels of every layer in other orders, each kernel as it is."""
        parts = []
        for part, (channels, size) in zip(vector.split([c * k for c, k in self.blocks]), self.blocks, strict=True):
            order = torch.rand(BANK_PART, channels, device=vector.device).argsort(1)
            parts.append(part.view(channels, size)[order].flatten(1))
        return torch.cat(parts, 1)

    def before_epoch(self, model: nn.Module) -> None:
        """Five detector steps and twenty extractor steps on the current weights."""
        vector = self.vector(model).detach()
        optimizer = torch.optim.RMSprop(self.detector.parameters(), lr=RATE)
        for _ in range(DETECTOR_STEPS):
            loss = self._covert_score(self._bank(vector)).mean() - self._covert_score(vector)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for parameter in self.detector.parameters():
                    parameter.clamp_(-CLIP, CLIP)
        optimizer = torch.optim.RMSprop(self.extractor.parameters(), lr=RATE)
        bits = self.get_buffer("bits")
        for _ in range(EXTRACTOR_STEPS):
            own = functional.binary_cross_entropy_with_logits(self.extractor(vector), bits)
            bank = self._bank(vector)
            random_bits = torch.randint(0, 2, (len(bank), len(bits)), device=bits.device).float()
            others = functional.binary_cross_entropy_with_logits(self.extractor(bank), random_bits)
            optimizer.zero_grad()
            (own + self.others * others).backward()
            optimizer.step()

    def _covert_score(self, vectors: Tensor) -> Tensor:
        """High where the detector sees a mark."""
        return torch.tanh(self.detector(vectors.sort(-1).values)).squeeze(-1)

    def penalty(self, model: nn.Module) -> Tensor:
        """`λ1·Σ BCE(F(w), m) + λ2·D(sort w)`."""
        vector = self.vector(model)
        message = functional.binary_cross_entropy_with_logits(
            self.extractor(vector), self.get_buffer("bits"), reduction="sum"
        )
        return MESSAGE_STRENGTH * message + COVERT_STRENGTH * self._covert_score(vector)

    def host_parameters(self) -> list[nn.Parameter]:
        """None: both networks have optimisers of their own."""
        return []

    def key_tensors(self) -> dict[str, Tensor]:
        """The extractor and its units; the detector has done its work."""
        state = self.state_dict()
        return {name: value for name, value in state.items() if not name.startswith("detector")}


class Riga21(Scheme):
    """A message that a secret network reads from mean kernels (Wang and Kerschbaum 2021)."""

    name: ClassVar[str] = "riga21"
    reference: ClassVar[str] = "Wang and Kerschbaum, RIGA, WWW 2021"
    trained: ClassVar[tuple[str, ...] | None] = ("extractor", "centre", "unit")  # only the message follows
    settled_margin: ClassVar[float] = 0.5
    carries_alone: ClassVar[bool] = False

    def default_layers(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        """The last two undivided convolutions, or inner linear layers."""
        return last_layers(model, images, 2)

    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        """One bit for every entry of the mean kernels, and no more than the hidden layer has."""
        return min(HIDDEN, sum(layer_weight(model, layer)[0].numel() for layer in layers))

    def prepare(self, target: Target) -> Embedding:
        """Draw extractor, detector and bank."""
        return Riga(target)

    def check_key(self, key: Key) -> None:
        """An extractor for the mean kernels, and their units."""
        bits = len(key.message)
        require_settings(key, ())
        require_tensors(
            key,
            {
                "centre": (),
                "unit": (),
                "extractor.0.weight": (HIDDEN, mean_kernel_size(key)),
                "extractor.0.bias": (HIDDEN,),
                "extractor.2.weight": (bits, HIDDEN),
                "extractor.2.bias": (bits,),
            },
        )
        require_positive(key, "unit")
        require_independent(key.tensors["extractor.2.weight"].T, "extractor.2.weight")

    def read(self, reader: Reader, key: Key) -> Reading:
        """`F(w) > 0.5`, which is a positive logit."""
        tensors = {name: value.float() for name, value in key.tensors.items()}
        vector = (mean_kernels(reader.marked_weights(key)) - tensors["centre"]) / tensors["unit"]
        hidden = functional.linear(vector, tensors["extractor.0.weight"], tensors["extractor.0.bias"])
        scores = functional.linear(
            functional.leaky_relu(hidden, 0.2),
            tensors["extractor.2.weight"],
            tensors["extractor.2.bias"],
        )
        return Reading(scores)
