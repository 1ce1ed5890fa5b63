"""Text from a file, made safe to show: on a terminal, in a page, in an error message."""

from __future__ import annotations

import unicodedata
from typing import Final

HIDDEN: Final = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Kinds of characters that hide, break or turn text around, or that a terminal obeys."""

FILLERS: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800")
"""Letters by their kind, and yet nothing is seen."""


def visible(text: object, longest: int | None = None, keep: str = "") -> str:
    r"""Text without characters that hide, break or turn it around; they are written as escapes instead.

    Args:
        text: Whatever came from a file.
        longest: Text beyond this many letters is cut in the middle.
        keep: Characters that may stay, such as line breaks in text of our own.

    >>> visible("layer1\u202e.conv\x1b[2J")
    'layer1\\u202e.conv\\u001b[2J'
    >>> visible("a rather long name", 8)
    'a ra … name'
    """
    given = str(text)
    if given.isascii() and given.isprintable():
        whole = given
    else:
        whole = "".join(letter if letter in keep or not _hides(letter) else _escaped(letter) for letter in given)
    if longest is None or len(whole) <= longest:
        return whole
    return f"{whole[: longest // 2]} … {whole[-(longest // 2) :]}"


def _hides(letter: str) -> bool:
    return letter in FILLERS or unicodedata.category(letter) in HIDDEN


def _escaped(letter: str) -> str:
    number = ord(letter)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
