"""Merged columns against dense algebra; what cancels is judged against what was added up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from canon.graph import ChannelGraph, LinearMap, trace
from canon.recovery.merge import Merged
from canon.rewrite import SpaceRewrite
from tests.networks import Net, conv
from tests.preservation import randomize

FLOOR = 1e-12


def layer(groups: int = 1, transposed: bool = False) -> tuple[ChannelGraph, LinearMap, Tensor]:
    """The second of two convolutions, which reads 8 channels."""
    make = nn.ConvTranspose2d if transposed else nn.Conv2d
    net = randomize(Net(lambda net, x: net.fc(net.b(net.a(x).relu()).relu().mean((2, 3))),
                        a=conv(3, 8), b=make(8, 6, 3, groups=groups), fc=nn.Linear(6, 2)))  # fmt: skip
    graph = trace(net, torch.zeros(1, 3, 9, 9, dtype=torch.float64))
    linear = next(linear for linear in graph.maps if linear.name == "b")
    return graph, linear, net.get_parameter("b.weight").detach()


INTO = torch.tensor([0, 1, 0, -1, 2, 2, 3, 2])
KEEP = torch.tensor([0, 1, 4, 6])
FACTOR = torch.tensor([1.0, 1.0, -2.0, 1.0, 1.0, 0.5, 1.0, 3.0], dtype=torch.float64)


def rewrite(linear: LinearMap) -> tuple[int, SpaceRewrite]:
    assert linear.columns is not None
    return linear.columns[0].space, SpaceRewrite.merge(KEEP, INTO, {linear.columns[0].tap: FACTOR})


def dense() -> Tensor:
    matrix = torch.zeros(8, 4, dtype=torch.float64)
    for channel, target in enumerate(INTO.tolist()):
        if target >= 0:
            matrix[channel, target] = FACTOR[channel]
    return matrix


@pytest.mark.parametrize("transposed", [False, True])
def test_columns_add_up(transposed: bool) -> None:
    _, linear, weight = layer(transposed=transposed)
    space, change = rewrite(linear)
    merged = Merged(lambda: weight, weight.shape, linear, {space: change}, np.zeros(8), FLOOR)
    pattern = "iokl,ij->jokl" if transposed else "oikl,ij->ojkl"
    torch.testing.assert_close(merged.write(), torch.einsum(pattern, weight, dense()))
    assert bool(merged.marks().all())
    assert merged.cancelled is not None
    assert not bool(merged.cancelled.any())


def test_groups_stay_apart() -> None:
    _, linear, weight = layer(groups=2)
    assert linear.columns is not None
    into, keep = torch.tensor([0, 0, 1, 1, 2, 3, 2, 3]), torch.tensor([0, 2, 4, 5])
    change = SpaceRewrite.merge(keep, into, {})
    zeros = np.zeros(8)
    merged = Merged(lambda: weight, weight.shape, linear, {linear.columns[0].space: change}, zeros, FLOOR)
    expected = torch.zeros(6, 2, 3, 3, dtype=torch.float64)
    expected[:3].index_add_(1, into[:4], weight[:3])
    expected[3:].index_add_(1, into[4:] - 2, weight[3:])
    torch.testing.assert_close(merged.write(), expected)


@pytest.mark.parametrize(("left", "dies"), [(1e-13, True), (1e-9, False), (1e-3, False)])
def test_what_cancels_is_judged_against_what_was_added_up(left: float, dies: bool) -> None:
    """Large or small, numbers cancel if what is left of them is nothing to them."""
    for size in (1e-6, 1.0, 1e6):
        _, linear, weight = layer()
        weight = weight.clone()
        weight[:, 0] = size * torch.randn(6, 3, 3, dtype=torch.float64)
        weight[:, 2] = weight[:, 0] / 2 * (1 + left)  # factor -2
        space, change = rewrite(linear)
        merged = Merged(weight.clone, weight.shape, linear, {space: change}, np.zeros(8), FLOOR)
        assert bool(merged.marks()[0, :, 0].any()) is not dies
        assert bool(merged.marks()[0, :, 1:].all())
        assert bool((merged.weight[0, :, 0] == 0).all()) is dies


def test_channels_that_agree_less_may_cancel_less() -> None:
    _, linear, weight = layer()
    weight = weight.clone()
    weight[:, 2] = weight[:, 0] / 2 * (1 + 1e-5)
    space, change = rewrite(linear)
    spread = np.zeros(8)
    assert bool(Merged(lambda: weight, weight.shape, linear, {space: change}, spread, FLOOR).marks()[0, :, 0].all())
    spread[2] = 1e-5
    noisy = Merged(lambda: weight, weight.shape, linear, {space: change}, spread, FLOOR)
    assert not bool(noisy.marks()[0, :, 0].any())
    assert noisy.cancelled is not None
    assert 1e-6 < float(noisy.cancelled[0]) < 1e-5


def test_one_row_may_cancel_alone() -> None:
    _, linear, weight = layer()
    weight = weight.clone()
    weight[3, 2] = weight[3, 0] / 2
    space, change = rewrite(linear)
    merged = Merged(lambda: weight, weight.shape, linear, {space: change}, np.zeros(8), FLOOR)
    assert merged.marks()[0, :, 0].tolist() == [True, True, True, False, True, True]


def test_nothing_to_merge_gives_the_same_numbers() -> None:
    _, linear, weight = layer()
    merged = Merged(lambda: weight, weight.shape, linear, {}, np.zeros(8), FLOOR)
    assert torch.equal(merged.write(), weight)


@pytest.mark.parametrize("groups", [1, 2])
def test_what_rows_read_is_what_the_merged_weight_holds(groups: int) -> None:
    """More rows and fewer, in any order, against the merged weight itself."""
    _, linear, weight = layer(groups=groups)
    assert linear.columns is not None
    generator = torch.Generator().manual_seed(0)
    weight = weight * (torch.rand(weight.shape[:2], generator=generator) < 0.3)[:, :, None, None]
    change = SpaceRewrite.merge(torch.tensor([0, 2, 4, 5]), torch.tensor([0, 0, 1, 1, 2, 3, 2, 3]), {})
    merges, spread = {linear.columns[0].space: change}, np.zeros(8)
    merged, other = (Merged(lambda: weight, weight.shape, linear, merges, spread, FLOOR) for _ in range(2))
    marks = other.marks()
    for _ in range(40):
        live = torch.rand(groups, 6 // groups, generator=generator) < 0.5
        assert torch.equal(merged.read(live), (marks & live[:, :, None]).any(dim=1))


@pytest.mark.parametrize("groups", [1, 2])
def test_some_rows_and_columns_of_the_merged_weight(groups: int) -> None:
    _, linear, weight = layer(groups=groups)
    assert linear.columns is not None
    change = SpaceRewrite.merge(torch.tensor([0, 2, 4, 5]), torch.tensor([0, 0, 1, 1, 2, 3, 2, 3]), {})
    merged = Merged(lambda: weight, weight.shape, linear, {linear.columns[0].space: change}, np.zeros(8), FLOOR)
    rows, columns = torch.tensor([0, 2, 3, 5]), torch.tensor([1, 3])
    written = merged.write(rows, columns)
    inside = columns % (4 // groups)
    for place, row in enumerate(rows.tolist()):
        mine = inside if groups == 1 else inside[[row // 3]]
        assert torch.equal(written[place], merged.write()[row, mine])
