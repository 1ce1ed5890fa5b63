"""What is known of activations: told from the mathematics, found by asking."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from canon.describe.curves import Curves


@pytest.mark.parametrize(
    ("function", "linear", "half", "floor", "positive", "rises"),
    [
        (nn.Identity(), True, True, None, False, True),
        (torch.neg, True, True, None, False, False),
        (nn.ReLU(), False, True, 0.0, True, True),
        (nn.ReLU6(), False, False, 0.0, True, True),
        (nn.LeakyReLU(0.1), False, True, None, False, True),
        (nn.GELU(), False, True, -16.0, False, True),
        (nn.GELU("tanh"), False, True, -16.0, False, True),
        (nn.SiLU(), False, True, -64.0, False, True),
        (nn.Hardswish(), False, True, -3.0, False, True),
        (nn.Hardsigmoid(), False, False, -3.0, True, True),
        (nn.Sigmoid(), False, False, -64.0, True, True),
        (nn.Mish(), False, False, -64.0, False, True),
        (nn.Tanh(), False, False, None, False, True),
        (nn.ELU(), False, False, None, False, True),
        (nn.Threshold(0.1, 20.0), False, False, None, True, True),
        (torch.abs, False, True, None, True, True),
        (lambda v: 1 - v, False, True, None, False, False),
        (torch.log, False, False, None, False, False),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_activations(function: Any, linear: bool, half: bool, floor: float | None, positive: bool, rises: bool) -> None:
    found = Curves().of(function)
    assert (found.linear, found.half, found.floor) == (linear, half, floor)
    assert (found.positive, found.rises) == (positive, rises)


def test_nothing_is_known_without_a_function() -> None:
    found = Curves().of(None)
    assert not any((found.linear, found.half, found.positive, found.rises))
    assert found.floor is None
