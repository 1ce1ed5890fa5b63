"""A sketch in coordinates is the sketch of the merged weight, made densely."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from canon.describe import Coordinates, sketch_rows
from canon.graph import ChannelGraph, LinearMap, trace
from canon.graph.tensors import tensor_names
from canon.transforms import ChannelTransform
from tests.networks import Net, conv
from tests.preservation import randomize


def second_layer(groups: int = 1, padding: int = 0) -> tuple[ChannelGraph, LinearMap, dict[str, Tensor]]:
    """`b`, which reads the space of `a`, in a network of two convolutions."""
    b = nn.Conv2d(8, 6, 3, padding=padding, groups=groups)
    net = randomize(Net(lambda net, x: net.fc(net.b(net.a(x).relu()).relu().mean((2, 3))),
                        a=conv(3, 8), b=b, fc=nn.Linear(6, 2)))  # fmt: skip
    graph = trace(net, torch.zeros(1, 3, 9, 9, dtype=torch.float64))
    linear = next(linear for linear in graph.maps if linear.name == "b")
    return graph, linear, {name: tensor.detach() for name, tensor in tensor_names(net)[0].items()}


CLASSES = torch.tensor([0, 1, 0, -1, 2, 1, 3, 0])
FACTOR = torch.tensor([1.0, 1.0, 2.0, 1.0, 0.5, -1.5, 1.0, 0.25], dtype=torch.float64)


def test_columns_of_one_class_add_up() -> None:
    graph, linear, tensors = second_layer()
    assert linear.columns is not None
    space, tap = linear.columns[0].space, linear.columns[0].tap
    merged = ChannelTransform.merge(CLASSES, FACTOR, 4)
    weight = torch.einsum("oikl,ij->ojkl", tensors["b.weight"], merged.dense())
    found = sketch_rows(linear, graph, tensors, {space: Coordinates(CLASSES.numpy(), 4, {tap: FACTOR.numpy()})}, seed=3)
    plain = sketch_rows(linear, graph, {**tensors, "b.weight": weight}, {space: Coordinates.plain(4)}, seed=3)
    np.testing.assert_allclose(found.vectors, plain.vectors, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.offset, tensors["b.bias"])
    mass = (tensors["b.weight"] * (FACTOR * (CLASSES >= 0))[:, None, None]).flatten(1).norm(dim=1)
    np.testing.assert_allclose(found.mass, mass, rtol=1e-6, atol=1e-9)


def test_what_cancels_leaves_nothing() -> None:
    graph, linear, tensors = second_layer()
    assert linear.columns is not None
    weight = tensors["b.weight"].clone()
    weight[2] = 0
    weight[2, 0], weight[2, 2], weight[2, 7] = 1.0, -1.0, 4.0  # factors 1, 2, 1/4: 1 - 2 + 1 = 0
    space, tap = linear.columns[0].space, linear.columns[0].tap
    known = {space: Coordinates(CLASSES.numpy(), 4, {tap: FACTOR.numpy()})}
    found = sketch_rows(linear, graph, {**tensors, "b.weight": weight}, known, seed=3)
    assert np.linalg.norm(found.vectors[2]) < 1e-12 * found.mass[2]
    assert np.linalg.norm(found.vectors[1]) > 0.1 * found.mass[1]


def test_proportional_rows_have_proportional_sketches() -> None:
    graph, linear, tensors = second_layer()
    assert linear.columns is not None
    weight = tensors["b.weight"].clone()
    weight[4] = -2.5 * weight[1]
    found = sketch_rows(
        linear, graph, {**tensors, "b.weight": weight}, {linear.columns[0].space: Coordinates.plain(8)}, 0
    )
    np.testing.assert_allclose(found.vectors[4], -2.5 * found.vectors[1])
    unit = found.vectors / np.linalg.norm(found.vectors, axis=1, keepdims=True)
    others = np.abs(unit @ unit.T)[[0, 1, 2, 3, 5]][:, [0, 1, 2, 3, 5]] - np.eye(5)
    assert float(others.max()) < 0.95


@pytest.mark.parametrize("padding", [0, 1])
def test_constants_count_as_an_offset_only_without_zero_padding(padding: int) -> None:
    graph, linear, tensors = second_layer(padding=padding)
    assert linear.columns is not None
    segment = linear.columns[0]
    values = np.full(8, np.nan)
    values[3] = 0.7
    known = {segment.space: Coordinates(np.arange(8), 8, {}, {segment.point: values})}
    found = sketch_rows(linear, graph, tensors, known, seed=0)
    expected = tensors["b.bias"].clone()
    if padding == 0:
        expected += 0.7 * tensors["b.weight"][:, 3].sum((1, 2))
    np.testing.assert_allclose(found.offset, expected)


def test_groups_are_sketched_side_by_side() -> None:
    graph, linear, tensors = second_layer(groups=2)
    assert linear.columns is not None
    index = torch.tensor([0, 1, 0, 1, 2, 3, 3, 2])
    found = sketch_rows(linear, graph, tensors, {linear.columns[0].space: Coordinates(index.numpy(), 4)}, seed=1)
    weight = tensors["b.weight"]
    full = torch.zeros(6, 8, 3, 3, dtype=torch.float64)
    full[:3, :4], full[3:, 4:] = weight[:3], weight[3:]
    dense = torch.zeros(6, 4, 3, 3, dtype=torch.float64).index_add_(1, index, full)
    whole = second_layer()[1]
    plain = sketch_rows(
        whole, graph, {**tensors, "b.weight": dense}, {linear.columns[0].space: Coordinates.plain(4)}, 1
    )
    np.testing.assert_allclose(found.vectors, plain.vectors, rtol=1e-10, atol=1e-12)
