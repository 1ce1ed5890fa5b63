"""greedy: signs of greedily chosen residuals of the weights, derived from an RSA signature.

Liu, Weng, Zhu: *Watermarking Deep Neural Networks with Greedy Residuals*, ICML 2021.

The marked weights are flattened, joined, average-pooled to `T·m` numbers and shaped `T×m`.
In every row the half of smallest magnitude is set to zero; `r` is the row's mean.
The loss gains `λ·Σ relu(0.1 − s·r)`, `λ = 0.01`. The signs `s ∈ {±1}^T` are the first bits of the
SHA-256 of an RSA signature of the owner's message, so nobody can choose them to fit a model they
found. The similarity is the share of right signs.

Deviations: the mark lies in the last four undivided convolutions, joined; `T` is the message's
length and `m = min(253, |w| / T)` where the authors fix 256 and 253; the weights are cut to a multiple of
`T·m`, so that all pooling windows are equal, where the authors cut to one of 253. Pooling averages many small
weights, so the hinge is taken on `r` in units of the pooled values' own spread at the start, which
the key stores; the sign of `r`, which is all that is read, does not depend on it.

Exact output order, input order and scale matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from canon.watermarks.embedding import Embedding, hinge
from canon.watermarks.interface import Scheme, Target
from canon.watermarks.key import Key, Setting
from canon.watermarks.layers import last_layers, layer_weight
from canon.watermarks.reading import Reader, Reading
from canon.watermarks.schema import hexadecimal, refused, require_positive, require_settings, require_tensors
from canon.watermarks.signature import MODULUS_BITS, SignedStatement, sign

STRENGTH = 0.01
MOST_COLUMNS = 253
DIVIDER = 2


def pooled_rows(weights: Iterable[Tensor], rows: int) -> Tensor:
    """The joined weights, average-pooled to `rows×m`."""
    flat = torch.cat([weight.flatten() for weight in weights])
    columns = min(MOST_COLUMNS, len(flat) // rows)
    window = len(flat) // (rows * columns)
    return flat[: window * rows * columns].view(rows, columns, window).mean(2)


def residuals(rows: Tensor) -> Tensor:
    """Row means after the smaller half of every row is set to zero."""
    keep = rows.shape[1] - rows.shape[1] // DIVIDER
    chosen = rows.detach().abs().topk(keep, dim=1).indices
    return rows.gather(1, chosen).sum(1) / rows.shape[1]


class GreedyResiduals(Embedding):
    """Adds the hinge on residuals; leaves the signed statement in the key."""

    def __init__(self, target: Target, signed: SignedStatement) -> None:
        super().__init__()
        self.layers = target.layers
        self.signed = signed
        count = len(target.message)
        with torch.no_grad():
            rows = pooled_rows((layer_weight(target.model, name) for name in self.layers), count)
        self.register_buffer("signs", signed.bits(count).signs(), persistent=False)
        self.register_buffer("unit", rows.std().clamp(min=1e-12))

    def penalty(self, model: nn.Module) -> Tensor:
        """`λ·Σ relu(0.1 − s·r)`, `r` in units of the initial spread."""
        signs = self.get_buffer("signs")
        rows = pooled_rows((layer_weight(model, name) for name in self.layers), len(signs))
        return STRENGTH * hinge(residuals(rows / self.get_buffer("unit")), signs).sum()

    def key_settings(self) -> dict[str, Setting]:
        """Signature and public key."""
        return {
            "statement": self.signed.statement.hex(),
            "signature": self.signed.signature.hex(),
            "modulus": f"{self.signed.modulus:x}",
        }


class Greedy(Scheme):
    """Signs of greedily chosen residuals (Liu et al. 2021)."""

    name: ClassVar[str] = "greedy"
    reference: ClassVar[str] = "Liu et al., Watermarking DNNs with Greedy Residuals, ICML 2021"
    trained: ClassVar[tuple[str, ...] | None] = ()
    idle: ClassVar[tuple[str, ...]] = ("unit",)
    settled_margin: ClassVar[float] = 0.05

    def default_layers(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        """The last four undivided convolutions, or inner linear layers."""
        return last_layers(model, images, 4)

    def capacity(self, model: nn.Module, layers: tuple[str, ...], images: Tensor) -> int:
        """One bit for every 16 weights."""
        return sum(layer_weight(model, layer).numel() for layer in layers) // 16

    def prepare(self, target: Target) -> Embedding:
        """Sign the message."""
        return GreedyResiduals(target, sign(target.message.data, target.draws.seed("signature")))

    def check_key(self, key: Key) -> None:
        """A unit above zero, and a statement, signature and modulus of the right length."""
        require_settings(key, ("statement", "signature", "modulus"))
        require_tensors(key, {"unit": ()})
        require_positive(key, "unit")
        hexadecimal(key, "statement")
        signature = hexadecimal(key, "signature", MODULUS_BITS // 4)
        modulus = hexadecimal(key, "modulus", MODULUS_BITS // 4)
        if modulus[0] < "8" or int(modulus, 16) % 2 == 0 or signature >= modulus:
            raise refused(f"the modulus must be odd, of {MODULUS_BITS} bits, and larger than the signature")
        if sum(prod(shape) for shape in key.shapes.values()) < len(key.message):
            raise refused("its layers have fewer weights than the message has bits")

    def read(self, reader: Reader, key: Key) -> Reading:
        """The signs of the residuals, against the bits that the stored signature gives."""
        signed = SignedStatement(
            bytes.fromhex(str(key.settings["statement"])),
            bytes.fromhex(str(key.settings["signature"])),
            int(str(key.settings["modulus"]), 16),
        )
        expected = signed.bits(len(key.message))
        values = residuals(pooled_rows(reader.marked_weights(key), len(expected)))
        values = values / key.tensors["unit"].float()
        valid = signed.statement == key.message.data and signed.valid
        if not valid:  # anybody can choose bits that nobody signed
            values = torch.zeros_like(values)
        return Reading(values, expected=expected, details={"signature valid": valid})
