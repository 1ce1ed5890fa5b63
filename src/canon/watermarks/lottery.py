"""lottery: a QR code in the sparsity pattern of a pruned network.

Chen, Chen, Zhang, Wang: *You are caught stealing my winning lottery ticket! Making a lottery ticket
claim its ownership*, NeurIPS 2021; its second scheme.

A ticket is a mask over the weights, found by iterative magnitude pruning: in every round the
network is trained for a while, the smallest of the weights that are left are dropped from every
layer, and the others go back to where they began (Frankle, Carbin: *The lottery ticket hypothesis*,
ICLR 2019). `M[o, i] = 1` if any cell of the kernel from input `i` to output `o` is kept. The
message becomes a QR code (version 3, 29×29, error correction H, no border), which is written into
`M` at the layer and offset where `M` agrees best already: where the code has 1 and `M` has 0, one
random cell of the kernel is kept; where it has 0 and `M` has 1, the kernel is dropped. Finder,
alignment and timing patterns keep the ticket's own mask. Then the masked network is trained. To
read, crop `M` at the stored offset, draw the fixed patterns, decode. On a bare model `M` is `W ≠
0`.

Deviations: three rounds to half of every layer, each with a quarter of the epochs, where the paper
runs many whole trainings. A key that is drawn without training takes the larger half of the weights
as they are. The similarity
`mean(M == code)` is taken over the modules that carry the code, not over the fixed patterns, which
agree by definition and would lift chance level to 0.66. A weight counts as zero below a millionth of
its layer's largest, so that float dust left by a rewrite does not read as a kept cell.

By default every Linear and every undivided convolution with a spatial kernel is pruned; where none
of these has room for the code, every undivided layer is. A head that is tied to an embedding is left alone.

Exact output and input order matter; scale does not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.errors import WatermarkError
from canon.watermarks import qr
from canon.watermarks.controls import Kind
from canon.watermarks.embedding import Embedding
from canon.watermarks.interface import Learn, Scheme, Target
from canon.watermarks.key import Key, Setting
from canon.watermarks.layers import is_linear, layer_weight, tied_layers, undivided_layers
from canon.watermarks.message import Message
from canon.watermarks.reading import Reader, Reading
from canon.watermarks.schema import integer, refused, require_settings, require_tensors

SPARSITY = 0.5
ROUNDS = 3
"""How often the network is trained and pruned to find the ticket."""

DUST = 1e-6


def kept_kernels(mask: Tensor) -> Tensor:
    """`M`: outputs × inputs, whether any cell of the kernel is kept."""
    return mask.bool().flatten(2).any(2) if mask.ndim > 2 else mask.bool()


def has_room(weight: Tensor) -> bool:
    """Whether a 29×29 code fits into this weight's outputs × inputs."""
    return weight.shape[0] >= qr.SIZE and weight.shape[1] >= qr.SIZE


class Masked(Embedding):
    """Keeps the masked weights at zero."""

    def __init__(self, layers: tuple[str, ...]) -> None:
        super().__init__()
        self.layers = layers

    def keep(self, masks: dict[str, Tensor]) -> None:
        """What may stay."""
        for position, layer in enumerate(self.layers):
            self.register_buffer(f"mask{position}", masks[layer], persistent=False)

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        """Set the dropped weights to zero again."""
        for position, layer in enumerate(self.layers):
            layer_weight(model, layer).mul_(self.get_buffer(f"mask{position}"))


class Ticket(Masked):
    """A mask that says the code; leaves the code's place in the key."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.layers)
        code = torch.from_numpy(qr.encode(target.message.data))
        masks = {layer: magnitude_mask(layer_weight(target.model, layer), SPARSITY) for layer in target.layers}
        drawn = target.derived is not None
        self.layer, self.row, self.column = drawn_place(masks, target) if drawn else best_place(masks, code)
        self._write(masks[self.layer], code, target.generator)
        self.keep(masks)
        Masked.after_step(self, target.model)
        weight = layer_weight(target.model, self.layer).detach()
        self.register_buffer("substitute", weight.abs().sum() / weight.count_nonzero().clamp(min=1), persistent=False)

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        """Set dropped weights to zero again, and kept ones that no gradient reached to a value of the layer's size.

        The ticket may have dropped a cell that the code keeps. Training moves it off zero, unless its channel is idle:
        then nothing depends on it.
        """
        super().after_step(model)
        weight = layer_weight(model, self.layer)
        mask = self.get_buffer(f"mask{self.layers.index(self.layer)}")
        weight.copy_(torch.where(mask & (weight == 0), self.get_buffer("substitute").to(weight), weight))

    def _write(self, mask: Tensor, code: Tensor, generator: torch.Generator) -> None:
        """Make `M` equal the code in place, outside of the fixed patterns."""
        fixed = torch.from_numpy(qr.pattern_cells())
        for row, column in (~fixed).nonzero().tolist():
            kernel = mask[self.row + row, self.column + column]
            if not code[row, column]:
                kernel.zero_()
            elif not kernel.any():
                chosen = int(torch.randint(kernel.numel(), (1,), generator=generator))
                kernel.view(-1)[chosen] = True

    def key_settings(self) -> dict[str, Setting]:
        """Where the code lies."""
        return {"layer": self.layer, "row": self.row, "column": self.column}


def magnitude_mask(weight: Tensor, sparsity: float) -> Tensor:
    """False for this share of the weights, the smallest ones."""
    dropped = int(weight.numel() * sparsity)
    mask = torch.ones(weight.numel(), dtype=torch.bool)
    mask[weight.detach().abs().flatten().argsort()[:dropped]] = False
    return mask.view(weight.shape)


def best_place(masks: dict[str, Tensor], code: Tensor) -> tuple[str, int, int]:
    """Layer, row and column where the masks agree with the code in most modules."""
    carriers = torch.from_numpy(~qr.pattern_cells())
    kernel = (code.float() * 2 - 1) * carriers
    best, place = -torch.inf, ("", 0, 0)
    for layer, mask in masks.items():
        kept = kept_kernels(mask)
        if not has_room(kept):
            continue
        signs = kept.float()[None, None] * 2 - 1
        agreement = functional.conv2d(signs, kernel[None, None])[0, 0]
        score, index = agreement.flatten().max(0)
        if float(score) > best:
            best = float(score)
            place = (layer, *divmod(int(index), agreement.shape[1]))
    return place


def drawn_place(masks: dict[str, Tensor], target: Target) -> tuple[str, int, int]:
    """Layer, row and column that leave no choice: any place where the code fits, whatever the masks say there."""
    chosen = target.draws.whole("place", places(mask.shape for mask in masks.values()))
    for layer, mask in masks.items():
        here = places([mask.shape])
        if chosen < here:
            return (layer, *divmod(chosen, mask.shape[1] - qr.SIZE + 1))
        chosen -= here
    raise AssertionError("a number below the sum of all is below one of them")


def places(shapes: Iterable[tuple[int, ...]]) -> int:
    """Where a code could have been put. A key takes the best of all these, so that even one that was drawn for another
    model agrees with more than half of the modules."""
    return sum(max(0, shape[0] - qr.SIZE + 1) * max(0, shape[1] - qr.SIZE + 1) for shape in shapes)


class Lottery(Scheme):
    """A QR code in the sparsity pattern (Chen et al. 2021)."""

    name: ClassVar[str] = "lottery"
    reference: ClassVar[str] = "Chen et al., You are caught stealing my lottery ticket, NeurIPS 2021"
    trained: ClassVar[tuple[str, ...] | None] = ()
    settled_margin: ClassVar[float] = 1.0
    unmarked: ClassVar[tuple[Kind, ...]] = ("redrawn", "permuted")  # a sign does not change what is zero

    def default_layers(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        """Linear layers that are not tied, and undivided convolutions, spatial ones alone if they have room."""
        tied = tied_layers(model)
        undivided = {name: layer for name, layer in undivided_layers(model).items() if name not in tied}
        weights = {name: layer_weight(model, name) for name in undivided}
        spatial = tuple(
            name for name, layer in undivided.items() if is_linear(layer) or weights[name][0, 0].numel() > 1
        )
        if any(has_room(weights[name]) for name in spatial):
            return spatial
        return tuple(undivided)

    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        """What a QR code of this size holds, if one of the layers has room for it."""
        room = any(has_room(layer_weight(model, layer)) for layer in layers)
        return 8 * qr.CAPACITY if room else 0

    def begin(self, target: Target, learn: Learn) -> None:
        """Find the ticket: the model is left with its starting weights where they are kept, and zeros elsewhere."""
        ticket = Masked(target.layers)
        ticket.keep(
            {layer: torch.ones_like(layer_weight(target.model, layer), dtype=torch.bool) for layer in target.layers}
        )
        for number in range(1, ROUNDS + 1):
            trained = copy.deepcopy(target.model)
            learn(trained, ticket)
            sparsity = 1 - (1 - SPARSITY) ** (number / ROUNDS)
            weights = {layer: layer_weight(trained, layer).detach().cpu() for layer in target.layers}
            ticket.cpu().keep({layer: magnitude_mask(weight, sparsity) for layer, weight in weights.items()})
        ticket.after_step(target.model)

    def prepare(self, target: Target) -> Embedding:
        """Prune, and write the code into the mask."""
        if len(target.message) % 8:
            raise WatermarkError(f"a QR code holds whole bytes, but the message has {len(target.message)} bits")
        return Ticket(target)

    def check_key(self, key: Key) -> None:
        """A place for the code in one of the layers, and a message that fits into it."""
        require_tensors(key, {})
        require_settings(key, ("layer", "row", "column"))
        shape = key.shapes.get(str(key.settings["layer"]))
        if shape is None or len(shape) < 2 or min(shape[:2]) < qr.SIZE:
            raise refused("the code's layer must be one of the marked ones and have room for the code")
        integer(key, "row", 0, shape[0] - qr.SIZE)
        integer(key, "column", 0, shape[1] - qr.SIZE)
        if len(key.message) % 8 or len(key.message) > 8 * qr.CAPACITY:
            raise refused(f"a QR code holds up to {qr.CAPACITY} whole bytes, not {len(key.message)} bits")

    def read(self, reader: Reader, key: Key) -> Reading:
        """Crop the sparsity pattern, compare it with the code, and decode it."""
        layer, row, column = (key.settings[name] for name in ("layer", "row", "column"))
        assert isinstance(row, int), "written by key_settings"
        assert isinstance(column, int), "written by key_settings"
        weight = reader.weight(str(layer), key.shapes[str(layer)])
        kept = kept_kernels(weight.abs() > DUST * weight.abs().max())
        found = kept[row : row + qr.SIZE, column : column + qr.SIZE].numpy()
        carriers = ~qr.pattern_cells()
        expected = _expected(key.message.data)
        scores = torch.from_numpy(np.where(found[carriers], 1.0, -1.0))
        if not 0 < float(weight.abs().max()) < torch.inf:  # a layer of zeros, or not of numbers, shows no pattern
            scores = torch.zeros_like(scores)
        return Reading(
            scores,
            expected=expected,
            details={"decoded": _decoded_bytes(found.tobytes())},
            # All layers of the model and not the key's: a forger would name the one that fits and call it small.
            alternatives=max(places(key.shapes.values()), places(reader.layer_shapes().values())),
        )


@lru_cache(maxsize=8)
def _expected(data: bytes) -> Message:
    """What the modules that carry the code should say."""
    return Message.of(qr.encode(data)[~qr.pattern_cells()].astype(int))


@lru_cache(maxsize=8)
def _decoded_bytes(modules: bytes) -> str:
    return _decoded(np.frombuffer(modules, dtype=np.bool_).reshape(qr.SIZE, qr.SIZE))


def _decoded(modules: qr.Modules) -> str:
    """The decoded message as text or hexadecimal digits, or why there is none."""
    try:
        message = Message.from_bytes(qr.decode(qr.with_patterns(modules)))
    except WatermarkError as error:
        return f"unreadable: {error.message}"
    return message.text or f"hex:{message.hex}"
