"""What a watermark says: a row of bits, from text, from hexadecimal digits, or drawn at random."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from canon.errors import WatermarkError

DEFAULT_BITS = 128
"""Length of a message that nobody wrote."""


@dataclass(frozen=True)
class Message:
    """An ordered row of bits, most significant bit of each byte first.

    >>> Message.from_text("Hi").bits
    (0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 1)
    >>> Message.from_hex("4869") == Message.from_text("Hi")
    True
    >>> len(Message.random(seed=7)), Message.from_text("Hi").text
    (128, 'Hi')
    """

    bits: tuple[int, ...]
    """Zeros and ones."""

    def __post_init__(self) -> None:
        if not self.bits:
            raise WatermarkError("the message is empty", hint="Give at least one bit.")
        if not isinstance(self.bits, tuple) or any(type(bit) is not int or bit not in (0, 1) for bit in self.bits):
            raise WatermarkError("a message holds zeros and ones alone")

    def __len__(self) -> int:
        return len(self.bits)

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Eight bits for every byte."""
        return cls(tuple(byte >> shift & 1 for byte in data for shift in range(7, -1, -1)))

    @classmethod
    def from_text(cls, text: str) -> Message:
        """The bits of the text's UTF-8 bytes."""
        try:
            return cls.from_bytes(text.encode())
        except UnicodeEncodeError as error:
            raise WatermarkError("the message is no text", hint="Give its bytes as hex:...") from error

    @classmethod
    def from_hex(cls, digits: str) -> Message:
        """Four bits for every hexadecimal digit."""
        try:
            values = [int(digit, 16) for digit in digits]
        except ValueError as error:
            raise WatermarkError(f"'{digits}' is not hexadecimal", hint="Use the digits 0-9 and a-f alone.") from error
        return cls(tuple(value >> shift & 1 for value in values for shift in range(3, -1, -1)))

    @classmethod
    def random(cls, seed: int, bits: int = DEFAULT_BITS) -> Message:
        """Fair coins, the same ones for the same seed."""
        try:
            generator = torch.Generator().manual_seed(seed)
        except (ValueError, RuntimeError) as error:
            raise WatermarkError(f"{seed} is not a seed", hint="Seeds are whole numbers of 64 bits.") from error
        return cls.of(torch.randint(0, 2, (bits,), generator=generator))

    @classmethod
    def of(cls, bits: Iterable[int] | Tensor) -> Message:
        """The given bits, from any row of zeros and ones."""
        return cls(tuple(int(bit) if bit in (0, 1) else -1 for bit in bits))

    @classmethod
    def parse(cls, source: str) -> Message:
        """Read `text:…`, `hex:…` or `random:SEED`; anything else is text."""
        kind, separator, rest = source.partition(":")
        if separator and kind == "text":
            return cls.from_text(rest)
        if separator and kind == "hex":
            return cls.from_hex(rest)
        if separator and kind == "random":
            try:
                return cls.random(int(rest))
            except ValueError as error:
                raise WatermarkError(f"'{rest}' is not a seed", hint="Write random:7.") from error
        return cls.from_text(source)

    @property
    def data(self) -> bytes:
        """The bits as bytes, the last one filled with zeros."""
        padded = self.bits + (0,) * (-len(self.bits) % 8)
        digits = "".join(map(str, padded))
        return bytes(int(digits[start : start + 8], 2) for start in range(0, len(digits), 8))

    @property
    def hex(self) -> str:
        """The bytes as hexadecimal digits."""
        return self.data.hex()

    @property
    def text(self) -> str | None:
        """The message as text, where its bits spell printable text."""
        if len(self.bits) % 8:
            return None
        try:
            text = self.data.decode()
        except UnicodeDecodeError:
            return None
        return text if text.isprintable() else None

    def tensor(self) -> Tensor:
        """The bits as float zeros and ones."""
        return torch.tensor(self.bits, dtype=torch.float32)

    def signs(self, count: int | None = None) -> Tensor:
        """The bits as −1 and +1, repeated from the start until there are `count` of them."""
        count = len(self.bits) if count is None else count
        signs = self.tensor() * 2 - 1
        return signs.repeat(-(-count // len(signs)))[:count]

    def vote(self, values: Tensor) -> Tensor:
        """Undo `signs(count)`: for every bit the mean of the values that carry it."""
        carrier = torch.arange(len(values)) % len(self.bits)
        totals = torch.zeros(len(self.bits)).index_add_(0, carrier, values.float())
        counts = torch.bincount(carrier, minlength=len(self.bits))
        return totals / counts.clamp(min=1)
