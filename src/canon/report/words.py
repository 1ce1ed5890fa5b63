"""Numbers and names as a reader outside the field can take them in."""

from __future__ import annotations

from typing import Final

_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_STAY: Final = "\xa0"
"""A space that no line breaks at."""


def number(value: float | int | None, digits: int = 2) -> str:
    r"""A number in few digits, with powers of ten spelled as such.

    >>> number(1e-6), number(0.031), number(1389), number(None), number(0.0)
    ('10⁻⁶', '0.031', '1,389', 'not a number', '0')
    >>> number(5.62e-7).replace("\xa0", " ")
    '5.6 × 10⁻⁷'
    """
    if value is None:
        return "not a number"
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:,.{digits}g}" if abs(value) < 10 else f"{value:,.0f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    front = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return power(int(exponent)) if front == "1" else f"{front}{_STAY}×{_STAY}{power(int(exponent))}"


def power(exponent: int) -> str:
    """A power of ten.

    >>> power(-3), power(0)
    ('10⁻³', '1')
    """
    return "10" + str(exponent).translate(_RAISED) if exponent else "1"


def percent(share: float | None) -> str:
    """A share of one; what is not all or nothing never reads as all or nothing.

    >>> percent(1.0), percent(0.9999), percent(0.308), percent(0.0001)
    ('100%', '99.99%', '30.8%', '0.01%')
    """
    if share is None:
        return "not known"
    text = f"{share:.1%}"
    if (text == "100.0%" and share < 1) or (text == "0.0%" and share > 0):
        text = f"{share:.2%}" if 0.0001 <= share <= 0.9999 else ("more than 99.99%" if share > 0.5 else "under 0.01%")
    return text.replace(".0%", "%")


def odds(probability: float) -> str:
    """A probability, as how often something happens by luck.

    >>> odds(1e-39), odds(0.54), odds(1e-3)
    ('1 in 10³⁹', '54%', '1 in 1,000')
    """
    if probability > 0.01:
        return percent(probability)
    if probability <= 0:
        return f"less than 1 in {power(300)}"
    often = 1 / probability
    return f"1 in {often:,.0f}" if often < 1e6 else f"1 in {number(often)}"


def count(many: int, one: str, more: str | None = None) -> str:
    """A number of things.

    >>> count(1, "layer"), count(1200, "copy", "copies")
    ('1 layer', '1,200 copies')
    """
    return f"{many:,} {one if many == 1 else more or one + 's'}"


def sentence(text: str) -> str:
    """A clause as a sentence: a capital letter, a full stop.

    >>> sentence("no claim was given"), sentence("Done.")
    ('No claim was given.', 'Done.')
    """
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "?", "!", ":")) else ".") if text else ""
