"""How much noise there is, is measured: weak channels beside loud dummies stay, noisy dummies go."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from canon.describe.sketch import nearest
from canon.recovery import recover
from tests.preservation import outputs, relative_error
from tests.recovery.disguises import Plain, drawn, network, widened

SEEDS = range(20)


def clique(plain: Plain, loud: float, noise: float = 0.0, count: int = 3) -> nn.Module:
    """Equal channels that `b` reads with weights so many times as large as its own, which sum to noise."""
    b: Any = plain.model[Plain.B]
    shape = plain.model[Plain.A].weight.shape[1:]
    row = drawn(plain, 1, *shape) / shape.numel() ** 0.5
    free = drawn(plain, b.out_channels, count, *b.kernel_size)
    free = free - free.mean(1, keepdim=True)
    columns = b.weight.data.std() * loud * (free + noise * drawn(plain, *free.shape))
    return widened(plain, row.repeat(count, 1, 1, 1), drawn(plain, 1).repeat(count), columns)


def widths(model: Any) -> tuple[int, int]:
    return model[Plain.A].out_channels, model[Plain.B].out_channels


def weakened(seed: int, place: str) -> Plain:
    """A network in which one row of `b`, or one of its columns, is 1e-4 of what is usual."""
    plain = network(seed)
    weight: Tensor = plain.model[Plain.B].weight.data
    (weight if place == "row" else weight.transpose(0, 1))[1] *= 1e-4
    return plain


@pytest.mark.parametrize("loud", [1.0, 30.0])
@pytest.mark.parametrize("place", ["row", "column"])
def test_weak_channels_stay_beside_loud_cliques(place: str, loud: float) -> None:
    for seed in SEEDS:
        plain = weakened(seed, place)
        hidden = clique(plain, loud).float()
        result = recover(hidden, plain.example.float())
        assert widths(result.model) == widths(plain.model), f"seed {seed}: {result.report.table()}"
        clean = outputs(plain.model, plain.example)
        assert relative_error(outputs(result.model.double(), plain.example), clean) < 1e-3, f"seed {seed}"


@pytest.mark.parametrize("loud", [1.0, 5.0, 30.0])
def test_loud_cliques_that_readers_with_noise_cancel(loud: float) -> None:
    """The equal channels have no noise at all: what is left of their columns alone tells how much there is."""
    for seed in SEEDS:
        plain = network(seed)
        hidden = clique(plain, loud, 1e-5)
        result = recover(hidden, plain.example)
        assert widths(result.model) == widths(plain.model), f"seed {seed}: {result.report.table()}"
        drift = relative_error(outputs(result.model, plain.example), outputs(plain.model, plain.example))
        assert drift < 1e-9, f"seed {seed}: what is left is not the network"


@pytest.mark.parametrize("loud", [10.0, 30.0])
def test_similar_filters_stay_beside_loud_cliques(loud: float) -> None:
    """Two filters that differ by a tenth, in rows that a clique drowns."""
    for seed in SEEDS:
        plain = network(seed)
        b: Any = plain.model[Plain.B]
        with torch.no_grad():
            b.weight[1] = b.weight[0] + 0.1 * b.weight[0].std() * drawn(plain, *b.weight[0].shape)
            for norm in (plain.model[Plain.B + 1],):
                for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                    tensor[1] = tensor[0]
            if b.bias is not None:
                b.bias[1] = b.bias[0]
        hidden = clique(plain, loud)
        result = recover(hidden, plain.example)
        assert widths(result.model) == widths(plain.model), f"seed {seed}: {result.report.table()}"


@pytest.mark.parametrize("noise", [1e-5, 1e-3])
def test_copies_with_noise_are_copies(noise: float) -> None:
    for seed in SEEDS:
        plain = network(seed)
        generator = torch.Generator().manual_seed(seed)
        hidden = copy.deepcopy(clique(plain, 1.0))
        with torch.no_grad():
            for tensor in hidden.parameters():
                tensor.mul_(1 + noise * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
        result = recover(hidden, plain.example)
        assert widths(result.model) == widths(plain.model), f"seed {seed}: {result.report.table()}"
        drift = relative_error(outputs(result.model, plain.example), outputs(hidden, plain.example))
        assert drift < 30 * noise


def test_a_clique_that_agrees_by_chance_is_judged_by_the_noise_of_the_others() -> None:
    """Five pairs of rows show noise of 1e-4; the sixth agrees, and its columns leave as much as the others'."""
    for seed in range(5):
        plain = network(seed)
        b: Any = plain.model[Plain.B]
        shape = plain.model[Plain.A].weight.shape[1:]
        row = (drawn(plain, 6, *shape) / shape.numel() ** 0.5).repeat_interleave(2, 0)
        row[:10] *= 1 + 1e-4 * drawn(plain, *row[:10].shape)
        free = drawn(plain, b.out_channels, 6, *b.kernel_size).repeat_interleave(2, 1)
        free[:, 1::2] *= -1
        columns = b.weight.data.std() * free * (1 + 1e-4 * drawn(plain, *free.shape))
        hidden = widened(plain, row, drawn(plain, 6).repeat_interleave(2), columns)
        result = recover(hidden, plain.example)
        assert widths(result.model) == widths(plain.model), f"seed {seed}: {result.report.table()}"


@pytest.mark.parametrize(("columns", "goes"), [(1e-5, True), (1e-4, False)])
def test_channels_that_are_off_are_judged_before_they_are(columns: float, goes: bool) -> None:
    """Filters of ordinary size that a norm shifts far below zero, with next to no columns."""
    for seed in range(5):
        plain = network(seed)
        b: Any = plain.model[Plain.B]
        shape = plain.model[Plain.A].weight.shape[1:]
        row, ones = drawn(plain, 2, *shape) / shape.numel() ** 0.5, torch.ones(2, dtype=torch.float64)
        norm = {"weight": ones, "bias": -40 * ones, "running_mean": 0 * ones, "running_var": ones}
        read = columns * b.weight.data.std() * drawn(plain, b.out_channels, 2, *b.kernel_size)
        result = recover(widened(plain, row, 0 * ones, read, norm), plain.example)
        width = widths(plain.model)[0]
        assert widths(result.model)[0] == (width if goes else width + 2), f"seed {seed}"


def test_chance_grows_as_numbers_get_fewer() -> None:
    """Two numbers agree to a hundredth by chance; hundreds do not."""
    assert nearest(64, 2) < 1e-4 < 1e-2 < nearest(64, 64) < nearest(64, 576) < 1
    generator = torch.Generator().manual_seed(0)
    for freedom in (2, 4):
        rows = nn.functional.normalize(torch.randn(400, freedom + 1, generator=generator, dtype=torch.float64))
        gaps = torch.cdist(rows, rows).fill_diagonal_(9.0)
        assert float(gaps.min()) > nearest(400, freedom)
