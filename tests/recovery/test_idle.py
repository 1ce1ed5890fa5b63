"""Layers that do nothing are named, and left out of the lean model; layers that do something are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from canon import zoo
from canon.attacks import attack
from canon.recovery import recover
from canon.recovery.passes import PASSES, Pass
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


def without(name: str) -> tuple[Pass, ...]:
    kept = tuple(known for known in PASSES if known.__name__ != name)
    assert len(kept) == len(PASSES) - 1
    return kept


def shapes(model: nn.Module) -> list[torch.Size]:
    return [tensor.shape for tensor in model.state_dict().values()]


def with_identities(plain: Plain, kernel: int) -> nn.Sequential:
    stem, *rest = plain.model
    inner = identity(plain.model[Plain.A].out_channels, 1)
    return nn.Sequential(
        stem, identity(stem.out_channels, kernel), *rest[: Plain.NORM], inner, *rest[Plain.NORM :]
    ).eval()


@pytest.mark.parametrize("op", ["nso_zero", "nso_clique", "nso_split"])
def test_shuffled_and_scaled_afterwards(op: str) -> None:
    """Channels in another order and of another scale: every row and column of an identity still holds one number."""
    for seed in range(20):
        plain = network(seed)
        attacked = attack(with_identities(plain, (1, 3)[seed % 2]), plain.example, [op], seed=seed).model
        result = recover(attacked, plain.example)
        assert len(result.report.idle) == 2, f"seed {seed}: {result.report.idle}"
        assert shapes(result.lean()) == shapes(plain.model)
        assert relative_error(outputs(result.lean(), plain.example), outputs(plain.model, plain.example)) < 1e-9
        assert recover(attacked, plain.example, passes=without("straighten")).report.idle == ()


@pytest.mark.parametrize("scaled", [False, True])
def test_pairs_that_undo_each_other(scaled: bool) -> None:
    """A permutation and its inverse, with scales and theirs, one behind the other, without any attack of ours."""
    for seed in range(20):
        plain = network(seed)
        width = plain.model[0].out_channels
        order = torch.randperm(width, generator=plain.generator)
        scale = 0.5 + torch.rand(width, generator=plain.generator, dtype=torch.float64) if scaled else torch.ones(width)
        there, back = identity(width, 1), identity(width, 1)
        with torch.no_grad():
            there.weight.copy_((torch.diag(scale.double())[order])[:, :, None, None])
            back.weight.copy_(torch.linalg.inv(there.weight[:, :, 0, 0])[:, :, None, None])
        hidden = nn.Sequential(plain.model[0], there, back, *plain.model[1:]).eval()
        clean = outputs(plain.model, plain.example)
        assert relative_error(outputs(hidden, plain.example), clean) < 1e-12
        result = recover(hidden, plain.example)
        assert result.report.idle == ("1", "2"), f"seed {seed}: {result.report.idle}"
        assert shapes(result.lean()) == shapes(plain.model)
        assert relative_error(outputs(result.lean(), plain.example), clean) < 1e-9


class Branched(nn.Module):
    """A layer, and a branch behind it that adds zero."""

    def __init__(self, layer: Any, hidden: int) -> None:
        super().__init__()
        width = layer.out_channels
        self.layer, self.inner = layer, nn.Conv2d(width, hidden, 3, padding=1).double()
        self.norm, self.outer = nn.BatchNorm2d(hidden).double(), nn.Conv2d(hidden, width, 1).double()
        nn.init.zeros_(self.outer.weight)
        assert self.outer.bias is not None
        nn.init.zeros_(self.outer.bias)

    def forward(self, x: Tensor) -> Any:
        x = self.layer(x)
        return x + self.outer(torch.relu(self.norm(self.inner(x))))


@pytest.mark.parametrize("op", [None, "nso_zero", "nso_clique", "nso_split"])
def test_branches_that_add_zero(op: str | None) -> None:
    for seed in range(20):
        plain = network(seed)
        hidden: nn.Module = nn.Sequential(
            Branched(plain.model[0], 5), *plain.model[1:2], Branched(plain.model[2], 7), *plain.model[3:]
        ).eval()
        if op is not None:
            hidden = attack(hidden, plain.example, [op], seed=seed).model
        clean = outputs(plain.model, plain.example)
        assert relative_error(outputs(hidden, plain.example), clean) < 1e-9
        result = recover(hidden, plain.example)
        assert len(result.report.idle) == 6, f"seed {seed}: {result.report.idle}"
        assert shapes(result.lean()) == shapes(plain.model)
        assert relative_error(outputs(result.lean(), plain.example), clean) < 1e-9


def test_layers_that_do_something() -> None:
    plain = network(0)
    hidden: Any = padded(plain, 3)
    with torch.no_grad():
        hidden[1].bias[0] = 1e-3
        hidden[2].weight[0, 1, 1, 1] = 1e-3
    assert len(recover(hidden, plain.example).report.idle) == 1
    assert recover(plain.model, plain.example).report.idle == ()


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_fresh_models_have_none(name: str) -> None:
    assert recover(zoo.model(name), zoo.example_input(name)).report.idle == ()


def test_a_shuffled_layer_before_a_norm_without_weights() -> None:
    """No scale passes such a norm; order does."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6, affine=False)
    norm.running_mean, norm.running_var = torch.randn(6), 0.5 + torch.rand(6)
    order: Any = nn.Conv2d(6, 6, 1, bias=False)
    order.weight.data = torch.eye(6)[torch.randperm(6)][..., None, None]
    rest = (nn.ReLU(), nn.Conv2d(6, 4, 1), nn.Flatten(), nn.Linear(64, 3))
    model = nn.Sequential(nn.Conv2d(3, 6, 3), order, norm, *rest).double().eval()
    example = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    result = recover(model, example)
    assert result.report.idle == ("1",)
    assert relative_error(outputs(result.model, example), outputs(model, example)) < 1e-12
