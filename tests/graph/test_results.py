"""Results by arithmetic against torch's own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.graph.results import function_result, layer_result
from canon.graph.values import Value


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Conv2d(6, 8, 3, stride=2, padding=1), (2, 6, 11, 8)),
    (nn.Conv2d(6, 8, (1, 5), padding=(0, 2), dilation=(1, 2), groups=2, bias=False), (1, 6, 9, 12)),
    (nn.Conv1d(4, 4, 3, groups=4), (1, 4, 10)),
    (nn.Conv3d(2, 3, 2, stride=(1, 2, 3)), (1, 2, 5, 6, 7)),
    (nn.AdaptiveAvgPool2d(1), (1, 6, 7, 5)),
    (nn.BatchNorm2d(6), (1, 6, 7, 5)),
    (nn.ReLU(), (1, 6)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda x: type(x).__name__)
def test_layers(layer: nn.Module, shape: tuple[int, ...]) -> None:
    layer = layer.eval().to("meta")
    found, expected = layer_result(layer, [Value(meta(*shape))]), layer(meta(*shape))
    assert found is not None
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)


X, ROW = meta(2, 6, 4, 4), meta(2, 1, 4, 4)
FUNCTIONS: list[tuple[Callable[..., Any], list[Any], dict[str, Any]]] = [
    (torch.cat, [[X, ROW, X], 1], {}),
    (torch.cat, [(X, X)], {"dim": -1}),
    (operator.add, [X, X], {}),
    (operator.mul, [ROW, X], {}),
    (torch.add, [X, meta(1, 6, 1, 1)], {}),
    (operator.iadd, [meta(2, 6, 4, 4), X], {}),
    (functional.relu, [X], {"inplace": False}),
]


def values(operand: Any) -> Any:
    if isinstance(operand, list | tuple):
        return type(operand)(map(values, operand))
    return Value(operand) if isinstance(operand, Tensor) else operand


@pytest.mark.parametrize(("function", "args", "kwargs"), FUNCTIONS)
def test_functions(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    found, expected = function_result(function, values(args), kwargs), function(*args, **kwargs)
    assert found is not None
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)


REFUSED: list[tuple[Callable[..., Any], list[Any], dict[str, Any]]] = [
    (torch.cat, [[X, meta(2, 6, 5, 4)], 1], {}),
    (torch.cat, [[X, X], 4], {}),
    (torch.cat, [[X, meta(2, 6, 4, 4, dtype=torch.float64)]], {}),
    (operator.add, [X, meta(2, 5, 4, 4)], {}),
    (operator.add, [X, X.to(memory_format=torch.channels_last)], {}),
    (operator.add, [X, meta(4)], {}),
    (operator.iadd, [ROW, X], {}),
    (torch.add, [X, X], {"alpha": 2}),
    (torch.sin, [X], {}),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), REFUSED)
def test_what_is_out_of_the_ordinary_is_run(function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    assert function_result(function, values(args), kwargs) is None


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(6, 8, 3), (1, 5, 9, 9)),
        (nn.Conv2d(6, 8, 3), (1, 6, 2, 9)),
        (nn.Conv2d(6, 8, 3), (6, 9, 9)),
        (nn.Conv2d(6, 8, 3, padding="same"), (1, 6, 9, 9)),
        (nn.Conv2d(6, 8, 3, padding=1, padding_mode="reflect"), (1, 6, 9, 9)),
        (nn.Conv2d(6, 8, 3).double(), (1, 6, 9, 9)),
        (nn.AdaptiveAvgPool2d(2), (1, 6, 9, 9)),
    ],
    ids=str,
)
def test_layers_out_of_the_ordinary_are_run(layer: nn.Module, shape: tuple[int, ...]) -> None:
    assert layer_result(layer.to("meta"), [Value(meta(*shape))]) is None


def test_a_layer_with_a_hook_is_run() -> None:
    layer = nn.ReLU()
    layer.register_forward_hook(lambda *_: None)
    assert layer_result(layer, [Value(X)]) is None
