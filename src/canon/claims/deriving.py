"""Derived watermark keys: commit to a secret, take the message from that claim, and only then mark the model.

Whoever is shown the secret later draws the key again. Nothing in a key that follows from a secret can have been chosen
to fit a model that came after the claim.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from canon.claims.claim import Claim
from canon.claims.envelope import signature_of
from canon.claims.keys import write_private
from canon.claims.opening import Opening
from canon.errors import ClaimError
from canon.watermarks.data import Dataset
from canon.watermarks.derive import SECRET_BYTES, derived_message
from canon.watermarks.key import Key
from canon.watermarks.message import Message
from canon.watermarks.registry import get

_PRECISION = 1e-5
"""How far the last digit of a drawn number may differ between machines."""


def make_secret() -> bytes:
    """Make a secret, in memory alone."""
    return secrets.token_bytes(SECRET_BYTES)


def save_secret(secret: bytes, path: str | Path) -> None:
    """Write a secret where its owner alone may read it. Nothing is ever overwritten."""
    write_private(path, f"{secret.hex()}\n".encode())


def new_secret(path: str | Path) -> bytes:
    """Make a secret and write it."""
    secret = make_secret()
    save_secret(secret, path)
    return secret


def load_secret(path: str | Path) -> bytes:
    """Read a secret."""
    text = Path(path).read_bytes()[: 4 * SECRET_BYTES].decode("ascii", "replace").strip()
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ClaimError(f"the file holds no secret of {SECRET_BYTES} bytes in hexadecimal digits", where=str(path))
    return secret


def message_of(claim: Claim, scheme: str, bits: int | None = None) -> Message:
    """The message that follows from a claim's signature."""
    claim.check()
    return derived_message(signature_of(claim.envelope, "claim"), scheme, bits or get(scheme).default_bits)


@dataclass(frozen=True)
class Derivation:
    """How much of a key follows from a secret and a claim."""

    scheme: str
    same: tuple[str, ...]
    """Entries that were drawn again and are the same."""

    trained: tuple[str, ...]
    """Entries that come out of training, which this scheme says of them: they leave a choice."""

    other: tuple[str, ...]
    """Entries that should be the same and are not."""

    message: bool
    """Whether the message is the one that follows from the claim's signature."""

    committed: bool | None
    """Whether the claim commits to the secret; None: no opening was given."""

    @property
    def follows(self) -> bool:
        """Whether all that can follow from the secret and the claim does."""
        return bool(self.same or self.trained) and not self.other and self.message and self.committed is not False

    @property
    def wholly(self) -> bool:
        """The same, and nothing in the key came out of training."""
        return self.follows and not self.trained


def rederive(
    key: Key, model: nn.Module, dataset: Dataset, secret: bytes, claim: Claim, opening: Opening | None = None
) -> Derivation:
    """Draw a key again from its secret, and compare.

    Args:
        key: The key as it is presented.
        model: The marked model; only shapes and names of its layers count.
        dataset: The data that it was trained on, from which some schemes take images.
        secret: What the owner reveals.
        claim: The claim that was made before training, whose signature gives the message.
        opening: Its opening, to see that it commits to the secret.
    """
    scheme = get(key.scheme)
    if scheme.trained is None:
        raise ClaimError(f"the scheme '{key.scheme}' does not say how its keys are derived")
    committed = None
    if opening is not None:
        opening.check(claim.check())
        wanted = sha256(secret).hexdigest()
        committed = any(leaf.thing.content.get("secret") == wanted for leaf in opening.of("watermark_key"))
    drawn = scheme.draw_key(model, dataset, message=key.message, layers=key.layers, secret=secret)
    same, trained, other = [], [], []
    for name in sorted({*_entries(key), *_entries(drawn)} - {*scheme.idle}):
        if name.startswith(scheme.trained):
            trained.append(name)
        elif _equal(_entries(key).get(name), _entries(drawn).get(name)):
            same.append(name)
        else:
            other.append(name)
    message = key.message == message_of(claim, key.scheme, len(key.message))
    return Derivation(key.scheme, tuple(same), tuple(trained), tuple(other), message, committed)


def _entries(key: Key) -> dict[str, Any]:
    return {**key.settings, **key.tensors, "shapes": {layer: tuple(shape) for layer, shape in key.shapes.items()}}


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        close = one.shape == two.shape and torch.allclose(one.double(), two.double(), rtol=_PRECISION, atol=_PRECISION)
        return bool(close)
    return type(one) is type(two) and bool(one == two)
