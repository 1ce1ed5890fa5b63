"""Keys that follow from one secret, so that nobody can choose a key that fits a model.

Every number of a derived key is drawn from `SHAKE256(secret ‖ scheme, layers, name, shape)`: projections, positions,
passports and signs. Whoever is shown the secret draws them again and compares. A scheme says which entries of its keys
come out of training and cannot be drawn again (`Scheme.trained`).
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from hashlib import sha256, shake_256
from typing import Final, final

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from canon.errors import WatermarkError
from canon.watermarks.message import Message

SECRET_BYTES: Final = 32
TRIES: Final = 1 << 60
"""How often somebody may have tried another secret until the key fitted a model: what computers can do, with room. A
p-value of a derived key is to be taken times this; an honest message of 128 bits has room for it."""

_DOMAIN: Final = "canon derived key 1"
_MESSAGE: Final = b"canon derived message 1"


class Draws(ABC):
    """Where a scheme's secrets come from. `name` says what for; one name is drawn once."""

    @abstractmethod
    def uniform(self, name: str, *shape: int) -> Tensor:
        """Numbers in [0, 1)."""

    @abstractmethod
    def normal(self, name: str, *shape: int) -> Tensor:
        """Standard normal numbers."""

    @abstractmethod
    def whole(self, name: str, bound: int) -> int:
        """A number from 0 to `bound - 1`."""

    @abstractmethod
    def coins(self, name: str, count: int) -> Tensor:
        """Zeros and ones."""

    @abstractmethod
    def order(self, name: str, count: int) -> Tensor:
        """The numbers from 0 to `count - 1`, shuffled."""

    @abstractmethod
    def seed(self, name: str) -> int:
        """A seed for something that takes one."""


@final
class Seeded(Draws):
    """From torch's generator: names do not count, the order of draws does."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def uniform(self, name: str, *shape: int) -> Tensor:
        """`torch.rand`."""
        return torch.rand(*shape, generator=self.generator)

    def normal(self, name: str, *shape: int) -> Tensor:
        """`torch.randn`."""
        return torch.randn(*shape, generator=self.generator)

    def whole(self, name: str, bound: int) -> int:
        """`torch.randint`."""
        return int(torch.randint(bound, (1,), generator=self.generator))

    def coins(self, name: str, count: int) -> Tensor:
        """`torch.randint`."""
        return torch.randint(0, 2, (count,), generator=self.generator)

    def order(self, name: str, count: int) -> Tensor:
        """`torch.randperm`."""
        return torch.randperm(count, generator=self.generator)

    def seed(self, name: str) -> int:
        """The generator's own."""
        return self.generator.initial_seed()


@final
class Derived(Draws):
    """From a secret: every draw by itself, in any order, the same on every machine.

    >>> draws = Derived(bytes(32), "uchida17", {"conv": (8, 4, 3, 3)})
    >>> draws.whole("place", 1000), draws.coins("signs", 6).tolist()
    (298, [1, 1, 0, 0, 0, 1])
    """

    def __init__(self, secret: bytes, scheme: str, layers: Mapping[str, Iterable[int]]) -> None:
        if len(secret) != SECRET_BYTES:
            raise WatermarkError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
        self._secret = secret
        self._context = [_DOMAIN, scheme, [[layer, *shape] for layer, shape in layers.items()]]

    def stream(self, name: str, shape: Iterable[int], count: int) -> bytes:
        """`count` bytes of `SHAKE256(secret ‖ JSON of [domain, scheme, layers with shapes, name, shape])`."""
        text = json.dumps([*self._context, name, list(shape)], separators=(",", ":"), ensure_ascii=True)
        return shake_256(self._secret + text.encode()).digest(count)

    def _integers(self, name: str, shape: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.frombuffer(self.stream(name, shape, 8 * math.prod(shape)), dtype="<u8")

    def _unit(self, name: str, shape: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """In (0, 1): the upper 52 bits, and half of the last place."""
        return ((self._integers(name, shape) >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Numbers in (0, 1), from 52 bits each."""
        return torch.from_numpy(self._unit(name, shape)).float().view(shape)

    def normal(self, name: str, *shape: int) -> Tensor:
        """The same, through the inverse of the normal distribution."""
        return torch.from_numpy(ndtri(self._unit(name, shape))).float().view(shape)

    def whole(self, name: str, bound: int) -> int:
        """From 32 bytes, so that no number is favoured."""
        return int.from_bytes(self.stream(name, (bound,), 32), "little") % bound

    def coins(self, name: str, count: int) -> Tensor:
        """The lowest bit of eight bytes each."""
        return torch.from_numpy((self._integers(name, (count,)) & np.uint64(1)).astype(np.int64))

    def order(self, name: str, count: int) -> Tensor:
        """By the size of a number for each."""
        return torch.from_numpy(np.argsort(self._integers(name, (count,)), kind="stable"))

    def seed(self, name: str) -> int:
        """256 bits."""
        return int.from_bytes(self.stream(name, (), 32), "little")


def derived_message(signature: bytes, scheme: str, bits: int) -> Message:
    """The message that follows from a signature: its maker cannot choose what it says."""
    data = _MESSAGE + sha256(signature).digest() + scheme.encode()
    return Message(Message.from_bytes(shake_256(data).digest(-(-bits // 8))).bits[:bits])
