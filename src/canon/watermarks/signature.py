"""RSA signatures of short statements, for schemes that derive their bits from one.

RSASSA-PKCS1-v1_5 with SHA-256 over Python integers: enough to tie bits to a statement that nobody
else could have signed. It is not hardened against timing and signs nothing but watermarks.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from canon.watermarks.message import Message

_EXPONENT: Final = 65537
MODULUS_BITS: Final = 2048
_ROUNDS: Final = 24
# The DER prefix that names SHA-256 in a PKCS #1 v1.5 signature (RFC 8017, section 9.2).
_SHA256_PREFIX: Final = bytes.fromhex("3031300d060960864801650304020105000420")
_SMALL_PRIMES: Final = [
    number for number in range(3, 2000, 2) if all(number % d for d in range(3, int(number**0.5) + 1, 2))
]


@dataclass(frozen=True)
class SignedStatement:
    """A statement, its signature and the public key that checks it."""

    statement: bytes
    """What was signed."""
    signature: bytes
    """As many bytes as the modulus."""
    modulus: int
    """Public modulus; the public exponent is 65537."""

    @property
    def valid(self) -> bool:
        """Whether the signature is the statement's, by a modulus of full length: any number fits some modulus."""
        number = int.from_bytes(self.signature)
        if self.modulus.bit_length() != MODULUS_BITS or self.modulus % 2 == 0 or number >= self.modulus:
            return False
        if len(self.signature) != MODULUS_BITS // 8:
            return False
        opened = pow(number, _EXPONENT, self.modulus)
        return opened == _encoded(self.statement, (self.modulus.bit_length() + 7) // 8)

    def bits(self, count: int) -> Message:
        """The first `count` bits of SHA-256(signature), SHA-256(signature ‖ 1), …"""
        blocks = -(-count // 256)
        stream = b"".join(
            hashlib.sha256(self.signature + (block.to_bytes(4) if block else b"")).digest() for block in range(blocks)
        )
        return Message(Message.from_bytes(stream).bits[:count])


def sign(statement: bytes, seed: int) -> SignedStatement:
    """Sign with the RSA key that follows from `seed`."""
    modulus, private = _key_pair(seed)
    size = MODULUS_BITS // 8
    signature = pow(_encoded(statement, size), private, modulus).to_bytes(size)
    return SignedStatement(statement, signature, modulus)


@lru_cache(maxsize=16)
def _key_pair(seed: int) -> tuple[int, int]:
    """Modulus and private exponent that follow from `seed`."""
    source = random.Random(seed)
    half = MODULUS_BITS // 2
    first, second = _prime(half, source), _prime(half, source)
    return first * second, pow(_EXPONENT, -1, (first - 1) * (second - 1))


def _encoded(statement: bytes, size: int) -> int:
    """EMSA-PKCS1-v1_5: 00 01 ff … ff 00, then the named digest."""
    digest = _SHA256_PREFIX + hashlib.sha256(statement).digest()
    padding = b"\xff" * (size - len(digest) - 3)
    return int.from_bytes(b"\x00\x01" + padding + b"\x00" + digest)


def _prime(bits: int, source: random.Random) -> int:
    """A random prime whose two top bits are set, so that a product of two has full length."""
    while True:
        candidate = source.getrandbits(bits) | (3 << (bits - 2)) | 1
        if candidate % _EXPONENT == 1 or any(candidate % prime == 0 for prime in _SMALL_PRIMES):
            continue
        if _passes_miller_rabin(candidate, source):
            return candidate


def _passes_miller_rabin(candidate: int, source: random.Random) -> bool:
    odd, twos = candidate - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(_ROUNDS):
        value = pow(source.randrange(2, candidate - 1), odd, candidate)
        if value in (1, candidate - 1):
            continue
        for _ in range(twos - 1):
            value = pow(value, 2, candidate)
            if value == candidate - 1:
                break
        else:
            return False
    return True
