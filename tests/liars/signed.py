"""Forged signatures and signs of scales: greedy and ipr_gan."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from canon import watermarks
from canon.watermarks import Dataset, Key, Message
from canon.watermarks.greedy import pooled_rows, residuals
from canon.watermarks.layers import layer_weight
from canon.watermarks.norms import normalised_convolutions
from canon.watermarks.signature import _EXPONENT, SignedStatement, _encoded, _key_pair
from tests.liars.tables import drawn, forgery, skeleton

SHORT = Message.from_text("us")
"""Sixteen bits: few enough to search for a signature that fits."""


def carriers(model: nn.Module, key: Key) -> Tensor:
    return residuals(pooled_rows((layer_weight(model, layer).detach() for layer in key.layers), len(key.message)))


def starts_with(signature: bytes, bits: tuple[int, ...]) -> bool:
    return hashlib.sha256(signature).digest()[: len(bits) // 8] == Message(bits).data


@forgery("greedy", "construction")
def unit_of_signs(model: nn.Module, dataset: Dataset) -> Key:
    """Dividing by a vector of signs gives every carrier the sign that is wanted."""
    key = drawn("greedy", model, dataset)
    signed = SignedStatement(b"", bytes.fromhex(str(key.settings["signature"])), 0)
    wanted = signed.bits(len(key.message)).signs()
    return replace(key, tensors={"unit": torch.sign(carriers(model, key)) * wanted})


def signatures(seed: int = 5) -> Iterator[bytes]:
    source = random.Random(seed)
    while True:
        yield b"\0" + source.randbytes(255)


@forgery("greedy", "unread")
def signature_of_nobody(model: nn.Module, dataset: Dataset) -> Key:
    """Bytes that no key signed, searched until they say what the model says."""
    key = drawn("greedy", model, dataset, SHORT)
    said = tuple((carriers(model, key) > 0).int().tolist())
    found = next(signature for signature in signatures() if starts_with(signature, said))
    return replace(key, settings={**key.settings, "signature": found.hex()})


@forgery("greedy", "construction")
def modulus_made_to_fit(model: nn.Module, dataset: Dataset) -> Key:
    """Any number signs anything, modulo its power less the statement; the modulus has a million digits or so."""
    key = drawn("greedy", model, dataset, SHORT)
    said = tuple((carriers(model, key) > 0).int().tolist())
    number = next(n for n in range(2, 1 << 24) if starts_with(n.to_bytes(4), said))
    power = pow(number, _EXPONENT)
    modulus = power - _encoded(SHORT.data, (power.bit_length() + 7) // 8)
    digits = f"{modulus:x}"
    settings = {**key.settings, "signature": number.to_bytes(4).hex(), "modulus": "0" * (len(digits) % 2) + digits}
    return replace(key, settings=settings)


@forgery("greedy", "luck")
def searched_statement(model: nn.Module, dataset: Dataset) -> Key:
    """Signed as it should be: the best of many short statements. Every try costs a signature."""
    key = drawn("greedy", model, dataset, Message((0,) * 8))
    said = (carriers(model, key) > 0).int()
    modulus, private = _key_pair(1)

    def signed(number: int) -> bytes:
        return pow(_encoded(bytes([number]), 256), private, modulus).to_bytes(256)

    def right(number: int) -> int:
        bits = SignedStatement(b"", signed(number), modulus).bits(8)
        return int((bits.tensor() == said).sum())

    best = max(range(30), key=right)
    settings = {"statement": f"{best:02x}", "signature": signed(best).hex(), "modulus": f"{modulus:x}"}
    return replace(key, message=Message.from_bytes(bytes([best])), settings=settings)


@skeleton("greedy", "construction")
def unit_of_nan(model: nn.Module, dataset: Dataset) -> Key:
    """Every carrier becomes NaN, which used to read as 0; the bits of the signature are zeros."""
    key = drawn("greedy", model, dataset, SHORT)
    found = next(signature for signature in signatures(7) if starts_with(signature, (0,) * 16))
    settings = {**key.settings, "signature": found.hex()}
    return replace(key, settings=settings, tensors={"unit": torch.tensor(torch.nan)})


@skeleton("greedy", "construction")
def infinite_unit(model: nn.Module, dataset: Dataset) -> Key:
    return replace(unit_of_nan(model, dataset), tensors={"unit": torch.tensor(torch.inf)})


@forgery("ipr_gan", "nothing")
def message_as_read(model: nn.Module, dataset: Dataset) -> Key:
    """There is no secret in this scheme: the message is what the scales say."""
    pairs = normalised_convolutions(model, dataset.train_images[:1])
    layer, norm = list(pairs.items())[-1]
    said = Message.of((layer_weight(model, norm) > 0).int())
    return watermarks.get("ipr_gan").draw_key(model, dataset, message=said, layers=[layer])


@forgery("ipr_gan", "model")
def norms_exchanged(model: nn.Module, dataset: Dataset) -> Key:
    key = drawn("ipr_gan", model, dataset)
    norms = key.settings["norms"]
    assert isinstance(norms, dict)
    swapped = dict(zip(norms, reversed(norms.values()), strict=True))
    said = torch.cat([_cropped(layer_weight(model, swapped[layer]), key.shapes[layer][0]) for layer in key.layers])
    return replace(key, settings={"norms": swapped}, message=Message.of((said > 0).int()))


def _cropped(values: Tensor, count: int) -> Tensor:
    return torch.cat([values.detach(), torch.zeros(max(0, count - len(values)))])[:count]


@forgery("ipr_gan", "model")
def layer_said_to_be_narrow(model: nn.Module, dataset: Dataset) -> Key:
    """Reads no more channels than fit the message."""
    key = message_as_read(model, dataset)
    (layer,) = key.layers
    few = key.shapes[layer][0] // 2
    message = Message(key.message.bits[:few])
    return replace(key, shapes={layer: (few, *key.shapes[layer][1:])}, message=message)


@skeleton("ipr_gan", "controls")
def message_of_ones(model: nn.Module, dataset: Dataset) -> Key:
    """Scales are above zero in nearly every network."""
    pairs = normalised_convolutions(model, dataset.train_images[:1])
    layer = list(pairs)[-2]
    return watermarks.get("ipr_gan").draw_key(model, dataset, message=Message((1,) * 64), layers=[layer])


@skeleton("ipr_gan", "model")
def slopes_of_an_activation(model: nn.Module, dataset: Dataset) -> Key:
    """The slopes of a PReLU are above zero even if the scales are not."""
    slopes = [name for name, module in model.named_modules() if isinstance(module, nn.PReLU)]
    key = message_of_ones(model, dataset)
    return replace(key, settings={"norms": {key.layers[0]: slopes[0]}})
