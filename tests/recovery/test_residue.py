"""A bias that is only rounding, where it is all there is of a channel, is zero; what is small and meant is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from canon.recovery import recover
from canon.recovery.tolerance import Tolerance
from tests.preservation import outputs, relative_error

EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.ReLU(),
            nn.Conv2d(6, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 2, 1),
        ).eval()  # fmt: skip


@pytest.mark.parametrize(("bias", "left"), [(0.0, 5), (1e-8, 5), (-1e-8, 5), (1e-3, 6)])
def test_a_channel_of_rounding_is_no_channel(bias: float, left: int) -> None:
    """Zero padding keeps a constant from going into biases; only zero may go."""
    model = network()
    with torch.no_grad():
        model.get_parameter("0.weight")[2] = 0
        model.get_parameter("0.bias")[2] = bias
        model.get_parameter("2.bias")[2] = bias
    recovered = recover(model, EXAMPLE).model
    assert len(recovered.get_parameter("0.weight")) == left
    assert relative_error(outputs(recovered, EXAMPLE), outputs(model, EXAMPLE)) < 1e-5


@pytest.mark.parametrize("scale", [1e-3, 1e-7])
def test_small_channels_keep_their_biases(scale: float) -> None:
    """A copy that was scaled down has a bias as small, and is found by it."""
    model = network()
    with torch.no_grad():
        for name in ("0.weight", "0.bias"):
            model.get_parameter(name)[4] = model.get_parameter(name)[1] * scale
        model.get_parameter("2.weight")[4] = model.get_parameter("2.weight")[1]
        model.get_parameter("2.bias")[4] = model.get_parameter("2.bias")[1] * scale
        model.get_parameter("4.weight")[:, 4] /= scale
    recovered = recover(model, EXAMPLE).model
    assert len(recovered.get_parameter("0.weight")) == 5
    assert relative_error(outputs(recovered, EXAMPLE), outputs(model, EXAMPLE)) < 1e-4


def test_a_constant_that_was_scaled_down_is_not_lost() -> None:
    """It looks like rounding, but what reads it makes it count: the check notices, and the strict attempt keeps it."""
    model = network()
    with torch.no_grad():
        model.get_parameter("0.weight")[2] = 0
        model.get_parameter("0.bias")[2] = 1e-8
        model.get_parameter("2.bias")[2] = 1e-8
        model.get_parameter("4.weight")[:, 2] *= 1e7
    recovered = recover(model, EXAMPLE).model
    assert len(recovered.get_parameter("0.weight")) == 6


def test_half_precision_does_not_widen_it_and_the_strict_attempt_does_without() -> None:
    assert Tolerance.of(torch.bfloat16).residue == Tolerance.of(torch.float32).residue < 1e-5
    assert Tolerance.of(torch.float32).strict().residue == 0
    assert replace(Tolerance.of(torch.float64), residue=0.0) != Tolerance.of(torch.float64)
