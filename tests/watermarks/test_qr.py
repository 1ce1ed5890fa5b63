"""QR codes and their Reed–Solomon code, against other programs (segno, reedsolo)."""

from __future__ import annotations

import numpy as np
import pytest
import segno
from hypothesis import given
from hypothesis import strategies as st
from reedsolo import RSCodec

from canon.errors import WatermarkError
from canon.watermarks import qr, reed_solomon

TEXT = b"Canon, QR 3-H: 24 bytes!"
CODEC = RSCodec(22)


def drawn_elsewhere(data: bytes, mask: int) -> qr.Modules:
    code = segno.make(data, version=3, error="h", mode="byte", mask=mask, boost_error=False, micro=False)
    return np.array([list(row) for row in code.matrix]).astype(bool)


@given(st.binary(min_size=1, max_size=qr.CAPACITY), st.integers(0, 7))
def test_what_another_program_draws_is_read(data: bytes, mask: int) -> None:
    assert qr.decode(drawn_elsewhere(data, mask)) == data


@given(st.binary(min_size=qr.CAPACITY, max_size=qr.CAPACITY))
def test_codes_are_those_of_another_program(data: bytes) -> None:
    """Full ones: where there is room, segno puts a byte of zeros before the padding, which ISO/IEC 18004 does not."""
    code = qr.encode(data)
    assert any(np.array_equal(code, drawn_elsewhere(data, mask)) for mask in range(8))


@given(st.binary(min_size=13, max_size=13))
def test_parity_is_that_of_another_program(data: bytes) -> None:
    assert bytes([*data, *reed_solomon.encode(data, 22)]) == bytes(CODEC.encode(data))


@given(st.binary(max_size=qr.CAPACITY))
def test_round_trip(data: bytes) -> None:
    code = qr.encode(data)
    assert code.shape == (qr.SIZE, qr.SIZE)
    assert qr.decode(code) == data
    carriers = code[~qr.pattern_cells()]
    assert 0.45 < carriers.mean() < 0.55, "carriers must be fair coins"


def test_fixed_patterns_can_be_restored() -> None:
    code = qr.encode(TEXT)
    wiped = code & ~qr.pattern_cells()
    assert np.array_equal(qr.with_patterns(wiped), code)


def test_too_long() -> None:
    with pytest.raises(WatermarkError, match="24 bytes"):
        qr.encode(bytes(25))


def test_noise_is_not_read() -> None:
    noise = np.random.default_rng(0).random((qr.SIZE, qr.SIZE)) < 0.5
    with pytest.raises(WatermarkError):
        qr.decode(qr.with_patterns(noise))


@given(
    st.binary(min_size=13, max_size=13),
    st.dictionaries(st.integers(0, 34), st.integers(1, 255), max_size=11),
)
def test_up_to_eleven_bytes_are_put_right(data: bytes, damage: dict[int, int]) -> None:
    received = [*data, *reed_solomon.encode(data, 22)]
    for place, change in damage.items():
        received[place] ^= change
    assert reed_solomon.decode(received, 22) == list(data)


def test_more_damage_is_noticed() -> None:
    received = [0] * 13 + reed_solomon.encode([0] * 13, 22)
    for place in range(15):
        received[place] ^= place + 1
    with pytest.raises(WatermarkError, match="more than 11"):
        reed_solomon.decode(received, 22)
