"""Charts as numbers: where every mark stands, in percent of the width. The templates draw them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, Final

from canon.report.words import number, percent, power
from canon.watermarks import Controls

LEAST, MOST = -9, 1
"""Powers of ten at the ends of every axis of residuals."""

SHOWN: Final = 12
"""Layers that a chart of residuals names; the table beneath names all."""

BINS: Final = 65
"""Bars of the chart of controls at most."""


@dataclass(frozen=True)
class Tick:
    """A mark on an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Bar:
    """One bar or dot with its name and figure."""

    name: str
    at: float
    """Where it ends, in percent."""

    label: str
    good: bool = True
    start: float = 0.0
    """Where it begins, in percent."""


@dataclass(frozen=True)
class Histogram:
    """How many channels have which residual."""

    bars: tuple[Bar, ...]
    """`at` is the height in percent, `start` the place."""

    width: float
    tolerance: float
    ticks: tuple[Tick, ...]
    channels: int
    within: int


@dataclass(frozen=True)
class Residuals:
    """The worst residual of layers or spaces, on a logarithmic axis, the largest first."""

    bars: tuple[Bar, ...]
    tolerance: float
    ticks: tuple[Tick, ...]
    total: int


@dataclass(frozen=True)
class Luck:
    """How many bits the controls have right, and how many this model has."""

    bars: tuple[Bar, ...]
    """`at` is the height in percent, `start` the place."""

    width: float
    matched: float
    """Where this model stands, in percent."""

    needed: float | None
    """From how many bits on luck is ruled out, in percent; None where no number of bits is enough."""

    needed_bits: int | None


def histogram(certificate: Mapping[str, Any]) -> Histogram | None:
    """The residuals of all compared channels; None where nothing could be compared."""
    found = certificate.get("histogram")
    if not found or not sum(found["counts"]):
        return None
    counts, borders, tolerance = found["counts"], found["borders"], certificate["tolerance"]
    width, top = 100 / len(counts), max(counts)
    places = [_place(border, borders, width) for border in borders]
    bars = tuple(
        Bar(_interval(borders, index), 100 * many / top, f"{many:,}", _upper(borders, index) <= tolerance * 1.001,
            index * width)
        for index, many in enumerate(counts)
    )  # fmt: skip
    ticks = tuple(
        Tick(place, power(round(log10(border))))
        for place, border in zip(places, borders, strict=True)
        if round(2 * log10(border)) % 6 == 0
    )
    channels = sum(counts)
    within = round(certificate["match_frac"] * channels)
    return Histogram(bars, width, _place(tolerance, borders, width), ticks, channels, within)


def residuals(rows: Iterable[tuple[str, float | None]], tolerance: float) -> Residuals:
    """The largest of some residuals by name."""
    given = [(name, float("inf") if worst is None else worst) for name, worst in rows]
    ranked = sorted(given, key=lambda row: -row[1])
    bars = tuple(
        Bar(name, logarithmic(worst), "not comparable" if worst == float("inf") else number(worst), worst <= tolerance)
        for name, worst in ranked[:SHOWN]
    )
    ticks = tuple(Tick(logarithmic(10.0**exponent), power(exponent)) for exponent in (-9, -6, -3, 0))
    return Residuals(bars, logarithmic(tolerance), ticks, len(given))


def similarities(mark: Mapping[str, Any], with_reference: bool) -> tuple[Bar, ...]:
    """What the owner's key reads from the owner's model and from the suspect."""
    tier2 = mark["tier2"]
    places = {"aligned": "in the owner's order", "extracted": "taken out of the suspect", "recovered": "after recovery"}
    rows = [
        ("The owner's model" if with_reference else "The owner's model (taken to be whole)", tier2["clean"]),
        ("The suspect as it was given", tier2["attacked"]),
        (f"The suspect {places[mark['read_from']]}", tier2["recovered"]),
    ]
    return tuple(Bar(name, min(100.0, max(0.0, 100 * value)), percent(value)) for name, value in rows)


def luck(matched: int, controls: Controls, alternatives: int, alpha: float) -> Luck:
    """The right bits of all controls beside those of the model."""
    total = controls.total
    bins = min(total + 1, BINS)
    counts = Counter(min(bins - 1, found * bins // (total + 1)) for found in controls.matched)
    width, top = 100 / bins, max(counts.values())
    bars = tuple(Bar("", 100 * many / top, f"{many:,}", start=index * width) for index, many in sorted(counts.items()))
    # The more bits, the smaller the p-value.
    least = bisect_left(range(total + 1), True, key=lambda bits: controls.p_value(bits, alternatives) <= alpha)
    needed = least if least <= total else None
    places = [None if bits is None else 100 * (bits + 0.5) / (total + 1) for bits in (matched, needed)]
    return Luck(bars, width, places[0] or 0.0, places[1], needed)


def logarithmic(value: float) -> float:
    """The place of a residual on the common axis, in percent."""
    if value <= 0:
        return 0.0
    return min(100.0, max(0.0, 100 * (log10(value) - LEAST) / (MOST - LEAST))) if value != float("inf") else 100.0


def _place(value: float, borders: Sequence[float], width: float) -> float:
    """Where a number stands among bins of equal width."""
    steps = (log10(max(value, 1e-300)) - log10(borders[0])) / (log10(borders[1]) - log10(borders[0]))
    return min(100.0, max(0.0, (steps + 1) * width))


def _upper(borders: Sequence[float], index: int) -> float:
    return borders[index] if index < len(borders) else float("inf")


def _interval(borders: Sequence[float], index: int) -> str:
    if index == 0:
        return f"below {number(borders[0])}"
    if index == len(borders):
        return f"{number(borders[-1])} or more"
    return f"{number(borders[index - 1])} to {number(borders[index])}"
