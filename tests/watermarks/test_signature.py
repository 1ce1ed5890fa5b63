"""Signatures tie bits to a statement."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from canon.watermarks.message import Message
from canon.watermarks.signature import sign


def test_valid_until_touched() -> None:
    signed = sign(b"this network is ours", seed=3)
    assert signed.valid
    assert not replace(signed, statement=b"this network is theirs").valid
    assert not replace(signed, signature=bytes(len(signed.signature))).valid


def test_bits_are_the_hash_of_the_signature() -> None:
    signed = sign(b"ours", seed=3)
    digest = Message.from_bytes(hashlib.sha256(signed.signature).digest())
    assert signed.bits(256) == digest
    assert signed.bits(128).bits == digest.bits[:128]
    assert signed.bits(300).bits[:256] == digest.bits


def test_another_seed_is_another_owner() -> None:
    assert sign(b"ours", seed=1).modulus != sign(b"ours", seed=2).modulus
    assert sign(b"ours", seed=1) == sign(b"ours", seed=1)
