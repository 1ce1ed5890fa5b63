"""What elementwise functions are like: where they are flat, which way they bend, what their odd part is.

A function is asked at many values, from 10⁻⁶ to 10⁴ on both sides, rather than known by name: all that the graph calls
pointwise is a function of torch, without surprises between the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]

NOTHING: Final = 1e-20
"""What no sum of activations will ever show."""

_FLOORS: Final = (0.0, -3.0, -16.0, -64.0)
_POSITIVE: Final = torch.logspace(-6, 4, 401, dtype=torch.float64)


@dataclass(frozen=True)
class Curve:
    """Facts about one function."""

    linear: bool
    """`f(x) = k·x`."""

    half: bool
    """`f(x) − f(−x) = k·x`: an even function and a line."""

    odd: bool
    """Whether it has an odd part at all: `f(x) ≠ f(−x)`."""

    turning: bool
    """`f(x) + f(−x) = 2·f(0)`: odd but for a constant."""

    homogeneous: bool
    """`f(s·x) = s·f(x)` for every `s > 0`."""

    floor: float | None
    """A value such that the function is zero there and everywhere below; None: there is none."""

    origin: float
    """What it makes of zero."""

    positive: bool
    """Never negative."""

    rises: bool
    """Never negative where its argument is not."""


UNKNOWN: Final = Curve(False, False, True, False, False, None, float("nan"), False, False)


class Curves:
    """Asks every function once; one activation may serve many spaces."""

    def __init__(self) -> None:
        self._known: dict[Function, Curve] = {}

    def of(self, function: Function | None) -> Curve:
        """The facts about a function."""
        if function is None:
            return UNKNOWN
        if function not in self._known:
            self._known[function] = _ask(function)
        return self._known[function]


@torch.no_grad()
def _ask(function: Function) -> Curve:
    x = _POSITIVE
    values = function(torch.cat([x, -x, x.new_zeros(1)]))
    up, down, zero = values[: x.numel()], values[x.numel() : -1], float(values[-1])
    size = 1e-12 * torch.maximum(x, torch.maximum(up.abs(), down.abs()))
    slope, other = function(torch.tensor([1.0, -1.0], dtype=torch.float64)).tolist()

    def small(difference: Tensor) -> bool:
        return bool((difference.abs() <= size).all())  # false for what is not a number

    return Curve(
        linear=small(up - slope * x) and small(down + slope * x) and zero == 0,
        half=small((up - down - (slope - other) * x) / 1e3),  # softplus is a line from 20 on
        odd=not small(up - down),
        turning=small(up + down - 2 * zero),
        homogeneous=small(up - slope * x) and small(down - other * x) and zero == 0,
        floor=next((t for t in _FLOORS if _zero_below(function, t)), None),
        origin=zero,
        positive=bool((values >= 0).all()),
        rises=bool((up >= 0).all()) and zero >= 0,
    )


def _zero_below(function: Function, threshold: float) -> bool:
    return bool((function(threshold - torch.cat([_POSITIVE.new_zeros(1), _POSITIVE])).abs() <= NOTHING).all())
