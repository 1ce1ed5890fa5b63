"""Charts as numbers: where every mark stands, in percent of the width. The templates draw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, Final

from scipy.stats import binom

from canon.report.words import number, percent, power

LEAST, MOST = -9, 1
"""Powers of ten at the ends of every axis of residuals."""

SHOWN: Final = 12
"""Layers that a chart of residuals names; the table beneath names all."""

CHANCE: Final = 0.5
"""Share of bits that are right by luck."""


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
class Bits:
    """How many bits luck gets right, and how many this model did."""

    curve: str
    """A path in a box of 100 by 100."""

    matched: float
    needed: float
    """From how many bits on luck is ruled out, in percent of all; above 100 where the message is too short."""

    needed_bits: int


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
    """What the owner's key reads before and after."""
    tier2, read_from = mark["tier2"], mark["read_from"]
    rows = [
        ("The owner's model" if with_reference else "The owner's model (taken to be whole)", tier2["clean"]),
        ("The suspect as it was given", tier2["attacked"]),
        ("The suspect after recovery" + (" and alignment" if read_from == "aligned" else ""), tier2["recovered"]),
    ]
    return tuple(Bar(name, min(100.0, 100 * value), percent(value)) for name, value in rows)


def bits(mark: Mapping[str, Any]) -> Bits:
    """The distribution of right bits for a message that has nothing to do with the model."""
    total, alpha = mark["total"], mark["alpha"] / mark["alternatives"]
    needed = int(binom.isf(alpha, total, CHANCE)) + 1
    points = sorted({round(index * total / 200) for index in range(201)})
    top = binom.pmf(round(total * CHANCE), total, CHANCE)
    heights = [(100 * point / total, 100 - 100 * float(binom.pmf(point, total, CHANCE) / top)) for point in points]
    curve = "M0 100" + "".join(f"L{x:.2f} {y:.2f}" for x, y in heights) + "L100 100Z"
    return Bits(curve, 100 * mark["matched"] / total, 100 * needed / total, needed)


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
