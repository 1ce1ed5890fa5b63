"""A thousand damaged claims, openings and time-stamps: nothing crashes, and nothing is accepted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from canon import claims
from canon.claims import Claim, Committed, Opening, Presented, examine
from canon.errors import ClaimError
from tests.claims.owner import SUSPECT_DATE, Owner


def damaged(data: bytes, source: random.Random) -> bytes:
    """One change: a bit, a byte, a cut, a hole, a repetition, two parts exchanged, or a sign of JSON."""
    start = source.randrange(len(data))
    stop = min(len(data), start + source.randint(1, 40))
    match source.randrange(8):
        case 0 | 1:
            return data[:start] + bytes([data[start] ^ 1 << source.randrange(8)]) + data[start + 1 :]
        case 2:
            return data[:start] + source.randbytes(1) + data[start + 1 :]
        case 3:
            return data[:start]
        case 4:
            return data[:start] + data[stop:]
        case 5:
            return data[:stop] + data[start:]
        case 6:
            middle = (start + stop) // 2
            return data[:start] + data[middle:stop] + data[start:middle] + data[stop:]
        case _:
            return data[:start] + source.choice([b"[", b"}", b"null", b"1e999", b'"', b" ", b"\\u0000"]) + data[start:]


@pytest.mark.parametrize("part", ["claim", "opening", "token"])
def test_nothing_damaged_is_accepted(part: str, owner: Owner, made: Committed) -> None:
    source, trust, tried = random.Random(part), owner.trust(), 0
    whole = {"claim": made.claim.encode(), "opening": made.opening.encode(), "token": made.claim.tokens[0]}[part]
    while tried < 340:
        data = damaged(whole, source)
        if data == whole:
            continue
        tried += 1
        try:
            claim = Claim.decode(data) if part == "claim" else made.claim
            opening = Opening.decode(data) if part == "opening" else made.opening
            if part == "token":
                claim = Claim(made.claim.envelope, (data,))
        except ClaimError:
            continue
        answer = examine(Presented(claim, opening, trust, SUSPECT_DATE, "upload record"), owner.used)
        assert answer.answer == "nothing shown", (tried, answer.reason)
        assert answer.reason


def test_every_bit_of_a_claim_counts(owner: Owner, made: Committed) -> None:
    """Every byte of the file, with one bit of it changed, without the time-stamps' own bytes."""
    whole, trust = Claim(made.claim.envelope).encode(), owner.trust()
    for position in range(len(whole)):
        data = whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :]
        try:
            claim = Claim.decode(data)
        except ClaimError:
            continue
        stamped = Claim(claim.envelope, made.claim.tokens)
        answer = examine(Presented(stamped, made.opening, trust, SUSPECT_DATE, "upload record"), owner.used)
        assert answer.answer == "nothing shown", position


def test_the_undamaged_one_is_accepted(owner: Owner, made: Committed) -> None:
    """The tests above can fail: with nothing damaged, the same way ends in acceptance."""
    claim, opening = Claim.decode(made.claim.encode()), Opening.decode(made.opening.encode())
    presented = Presented(claim, opening, owner.trust(), SUSPECT_DATE, "upload record")
    assert examine(presented, owner.used).answer == "first"


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format":"canon-claim"}', b"0" * 1000],
)
def test_what_is_no_claim_at_all(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    for load in (Claim.load, Opening.load, claims.read_signature):
        with pytest.raises(ClaimError):
            load(tmp_path / "file")
    with pytest.raises(ClaimError):
        claims.open_sealed(data)
