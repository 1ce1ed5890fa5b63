"""Biases that are only rounding are judged as zero; what is small and meant is not."""

from __future__ import annotations

import torch
from torch import nn

from canon.graph import trace
from canon.graph.tensors import tensor_names
from canon.recovery.residue import without_residue

ROUNDING = float(torch.finfo(torch.float32).eps)


def test_only_biases_of_rounding_size_are_zero() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 2, 1)).eval()
    with torch.no_grad():
        for index in (0, 2):
            model.get_parameter(f"{index}.bias").copy_(torch.tensor([0.5, 1e-9, 1e-3, 0.0]))
        model.get_parameter("3.bias").copy_(torch.tensor([1e-8, -1e-8]))
    tensors, _ = tensor_names(model)
    found = without_residue(trace(model, torch.randn(1, 3, 8, 8)), tensors, ROUNDING)
    expected = torch.tensor([0.5, 0.0, 1e-3, 0.0])
    assert torch.equal(found["0.bias"], expected)
    assert torch.equal(found["2.bias"], expected), "a depthwise kernel has a bias too"
    assert torch.equal(found["3.bias"], torch.zeros(2)), "the rows tell what is small where all biases are"
    assert torch.equal(tensors["0.bias"][1], torch.tensor(1e-9)), "nothing given is changed"
    assert found["0.weight"] is tensors["0.weight"]


def test_half_precision_does_not_make_small_biases_zero() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    with torch.no_grad():
        model.get_parameter("0.bias").copy_(torch.tensor([0.5, 1e-3, 1e-4, 1e-9]))
    tensors, _ = tensor_names(model)
    graph = trace(model, torch.randn(1, 3, 8, 8))
    found = without_residue(graph, tensors, float(torch.finfo(torch.bfloat16).eps))
    assert torch.equal(found["0.bias"], torch.tensor([0.5, 1e-3, 1e-4, 0.0]))


def test_models_without_residue_are_given_back_as_they_are() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    tensors, _ = tensor_names(model)
    assert without_residue(trace(model, torch.randn(1, 3, 8, 8)), tensors, ROUNDING) is tensors
