"""QR codes and their Reed–Solomon code, against a code drawn by another program (segno)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canon.errors import WatermarkError
from canon.watermarks import qr, reed_solomon

TEXT = b"Canon, QR 3-H: 24 bytes!"
# Rows of version 3-H with mask 5, as segno draws them; the text fills the code, so no padding.
ROWS = """
1fd6ad7f 104ded41 1751625d 174cec5d 1756e65d 10486441 1fd5557f 001e9000 00c0c555 19af9e30
11f2a554 140fe513 056617eb 1c37e253 0ad14c8a 07bcb72d 02d88407 1eb27bd0 1b43affd 15b36d30
1749d9ff 00166719 1fc42954 105dbf1a 17410ff8 174ae282 17463836 104dea25 1fcf2a2c
""".split()


def drawn_elsewhere() -> qr.Modules:
    return np.array([[digit == "1" for digit in f"{int(row, 16):029b}"] for row in ROWS])


def test_reads_what_another_program_drew() -> None:
    assert qr.decode(drawn_elsewhere()) == TEXT


def test_draws_what_another_program_draws() -> None:
    bits = [byte >> shift & 1 for byte in qr._interleaved(qr._padded(TEXT)) for shift in range(7, -1, -1)]
    assert np.array_equal(qr._drawn([*bits, *([0] * 7)], mask=5), drawn_elsewhere())


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
