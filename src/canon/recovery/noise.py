"""How much noise there is, as the decisions themselves tell.

Copies disagree, and what cancels leaves something behind, by about as much as the numbers were disturbed: hardly at
all after an attack in float32, a thousandth where every weight moved by a thousandth. Most decisions say the same
number. One that rests on far more noise than the others show is not explained by noise: a weak row beside loud ones
that cancel is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from canon.describe import Array
from canon.recovery.partition import Classes
from canon.recovery.tolerance import Tolerance

OUTSTANDING: Final = 8.0
"""No decision rests on so many times the noise that the typical one shows."""

TRIES: Final = 4
"""How often noise is measured; each time there is less of it."""


def consistent(find: Callable[[Tolerance], dict[int, Classes]], tolerance: Tolerance) -> dict[int, Classes]:
    """Classes of which none rests on more noise than the others show.

    Args:
        find: Classes, with tolerances.
        tolerance: The tolerances to begin with.
    """
    for _ in range(TRIES):
        found = find(tolerance)
        noise = level(found)
        if noise is None:
            return found
        noise = max(OUTSTANDING * noise, 2 * tolerance.rounding)
        if max(float(classes.doubt.max()) for classes in found.values()) <= noise:
            return found
        tolerance = replace(tolerance, noise=min(noise, tolerance.noise / 2))
    return found


def level(classes: Mapping[int, Classes]) -> float | None:
    """The noise that typical decisions show: copies, or what cancelled, where that is less; None: there are none."""
    copies, nothing = _shown(classes)
    found = [float(np.median(shown)) for shown in (copies, nothing[nothing > 0]) if shown.size]
    return min(found) if found else None


def largest(classes: Mapping[int, Classes]) -> float:
    """The noise that nearly all decisions stay below."""
    shown = np.concatenate(_shown(classes))
    return float(np.quantile(shown, 0.9)) if shown.size else 0.0


def _shown(classes: Mapping[int, Classes]) -> tuple[Array, Array]:
    """By how much copies disagree, and what was left of rows that cancelled."""
    if not classes:
        return np.empty(0), np.empty(0)
    spread, doubt, leader, still = (
        [numbers.numpy() for numbers in parts]
        for parts in zip(*((c.spread, c.doubt, c.leader, c.null | c.constant) for c in classes.values()), strict=True)
    )
    copy = np.concatenate([numbers != np.arange(numbers.size) for numbers in leader])
    silent = np.concatenate(still)
    return np.concatenate(spread)[copy & ~silent], np.concatenate(doubt)[silent]
