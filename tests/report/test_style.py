"""Text can be read: every pair of colours has a contrast of 4.5 or more, in light and in dark."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

SHEET = (files("canon.report") / "templates" / "report.css").read_text(encoding="utf-8")
LIGHT, REST = SHEET.split("@media screen and (prefers-color-scheme: dark) {")
DARK = REST.split("}\n*")[0]
KINDS = ("", "sure", "holds", "against", "open")
PAIRS = [
    *((front, "paper") for front in ("ink", "soft", "link", "good", "bad", "tone")),
    *((front, "tint") for front in ("ink", "soft", "tone")),
    *((front, "panel") for front in ("ink", "soft", "tone")),
]


def colours(sheet: str, kind: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in (":root", f".{kind}") if kind else (":root",):
        rule = re.search(re.escape(name) + r" \{(.*?)\}", sheet, re.DOTALL)
        assert rule is not None
        found |= dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", rule[1]))
    return found


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """By the definition of WCAG 2."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_the_measure() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sheet", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read(sheet: str, kind: str) -> None:
    known = colours(sheet, kind)
    for front, back in PAIRS:
        assert contrast(known[front], known[back]) >= 4.5, f"{front} on {back}"


@pytest.mark.parametrize("sheet", [LIGHT, DARK], ids=["light", "dark"])
def test_bars_can_be_seen(sheet: str) -> None:
    known = colours(sheet, "")
    for part in ("left", "silent", "cancelling", "copied", "surplus"):
        assert contrast(known[part], known["paper"]) >= 3, part
