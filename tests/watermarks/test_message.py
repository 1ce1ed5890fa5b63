"""Messages: text, hexadecimal digits, random bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from canon.errors import WatermarkError
from canon.watermarks import Message


@given(st.binary(min_size=1, max_size=40))
def test_bytes_round_trip(data: bytes) -> None:
    assert Message.from_bytes(data).data == data
    assert Message.from_hex(data.hex()) == Message.from_bytes(data)


@given(st.text(min_size=1, max_size=20).filter(str.isprintable))
def test_printable_text_round_trip(text: str) -> None:
    assert Message.from_text(text).text == text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("text:hex:00", Message.from_text("hex:00")),
        ("hex:0fF", Message((0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1))),
        ("random:5", Message.random(5)),
        ("owner: me", Message.from_text("owner: me")),
    ],
)
def test_parse(source: str, expected: Message) -> None:
    assert Message.parse(source) == expected


@pytest.mark.parametrize("source", ["", "text:", "hex:", "hex:xyz", "random:soon"])
def test_parse_refuses(source: str) -> None:
    with pytest.raises(WatermarkError):
        Message.parse(source)


def test_only_bits() -> None:
    with pytest.raises(WatermarkError, match="zeros and ones"):
        Message((0, 2))


@pytest.mark.parametrize("bits", [[0, 1], (0.0, 1.0), (False, True), "01"])
def test_bits_are_a_row_of_whole_numbers(bits: Any) -> None:
    """They would be written otherwise than they are read."""
    with pytest.raises(WatermarkError, match="zeros and ones"):
        Message(bits)


def test_random_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = Message.random(3)
    torch.manual_seed(2)
    assert Message.random(3) == first != Message.random(4)
    assert len(first) == 128


@given(st.lists(st.integers(0, 1), min_size=1, max_size=20), st.integers(0, 80))
def test_vote_undoes_signs(bits: list[int], extra: int) -> None:
    message = Message.of(bits)
    votes = message.vote(message.signs(len(bits) + extra))
    assert Message.of(votes > 0) == message


@pytest.mark.parametrize("text", ["random:999999999999999999999999", "\udcff"])
def test_what_is_no_message_is_told(text: str) -> None:
    with pytest.raises(WatermarkError):
        Message.parse(text)


def test_numbers_between_zero_and_one_are_no_bits() -> None:
    with pytest.raises(WatermarkError, match="zeros and ones alone"):
        Message.of(torch.tensor([0.7, 1.0]))
