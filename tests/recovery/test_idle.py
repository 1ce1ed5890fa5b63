"""Layers that do nothing are named, and left out of the lean model; layers that do something are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from canon import zoo
from canon.attacks import attack
from canon.recovery import recover
from tests.preservation import outputs, relative_error
from tests.recovery.disguises import Plain, network


def identity(width: int, kernel: int) -> Any:
    layer: Any = nn.Conv2d(width, width, kernel, padding=kernel // 2)
    nn.init.dirac_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer.double()


def norm(width: int) -> Any:
    layer: Any = nn.BatchNorm2d(width).double()
    layer.running_var.fill_(4.0)
    layer.weight.data.fill_((4.0 + layer.eps) ** 0.5)
    return layer


def padded(plain: Plain, kernel: int) -> nn.Sequential:
    """Layers that do nothing behind the first two of a network."""
    stem, *rest = plain.model
    width, inner = stem.out_channels, plain.model[Plain.A].out_channels
    a = rest[: Plain.NORM]
    return nn.Sequential(stem, norm(width), identity(width, kernel), *a, identity(inner, 1), *rest[Plain.NORM :]).eval()


@pytest.mark.parametrize("kernel", [1, 3])
def test_layers_that_do_nothing(kernel: int) -> None:
    for seed in range(20):
        plain = network(seed)
        hidden = padded(plain, kernel)
        clean = outputs(plain.model, plain.example)
        assert relative_error(outputs(hidden, plain.example), clean) < 1e-12
        result = recover(hidden, plain.example)
        assert len(result.report.idle) == 3, result.report.idle
        lean = result.lean()
        assert relative_error(outputs(lean, plain.example), clean) < 1e-9
        kept = [tensor.shape for tensor in lean.state_dict().values()]
        assert kept == [tensor.shape for tensor in plain.model.state_dict().values()]
        assert result.report.to_dict()["idle"] == list(result.report.idle)


def test_widened_after_they_were_put_in() -> None:
    for seed in range(20):
        plain = network(seed)
        attacked = attack(padded(plain, 3), plain.example, ["nso_zero"], seed=seed, permute=False, scale=False)
        result = recover(attacked.model, plain.example)
        assert len(result.report.idle) == 3, result.report.table()
        assert relative_error(outputs(result.lean(), plain.example), outputs(plain.model, plain.example)) < 1e-9


def test_layers_that_do_something() -> None:
    plain = network(0)
    hidden: Any = padded(plain, 3)
    with torch.no_grad():
        hidden[1].bias[0] = 1e-3
        hidden[2].weight[0, 0, 1, 1] = 1.001
    assert len(recover(hidden, plain.example).report.idle) == 1
    assert recover(plain.model, plain.example).report.idle == ()


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_fresh_models_have_none(name: str) -> None:
    assert recover(zoo.model(name), zoo.example_input(name)).report.idle == ()
