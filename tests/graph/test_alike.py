"""When one trace serves two models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from canon.errors import TrainingModeError
from canon.graph import trace, trace_like
from canon.graph.alike import built_alike


class Small(nn.Module):
    """Layers, a shared layer, and attributes that the forward pass looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.tail = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.settings: dict[str, Any] = {"residual": True, "taps": [1, 2]}
        self.offset = torch.ones(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        y: Tensor = self.tail(x)
        return y + x if self.settings["residual"] else y


def small() -> Small:
    return Small().eval()


EXAMPLE = torch.zeros(1, 3, 8, 8)


def test_models_that_differ_in_numbers_share_a_trace() -> None:
    model = small()
    other = copy.deepcopy(model)
    other.offset = model.offset
    with torch.no_grad():
        other.first.weight.mul_(2)
    graph = trace(model, EXAMPLE)
    assert trace_like(other, EXAMPLE, model, graph) is graph
    again = trace(other, EXAMPLE)
    assert [(s.name, s.width, s.producers, s.consumers) for s in again.spaces] == [
        (s.name, s.width, s.producers, s.consumers) for s in graph.spaces
    ]
    assert (again.maps, again.taps) == (graph.maps, graph.taps)


def with_another_value(model: Small) -> None:
    model.settings["residual"] = False


def with_another_width(model: Small) -> None:
    model.tail[0] = nn.Conv2d(8, 9, 1).eval()
    model.tail[2] = nn.Conv2d(9, 8, 1).eval()


def with_another_stride(model: Small) -> None:
    model.first.stride = (2, 2)


def with_another_class(model: Small) -> None:
    model.tail[1] = nn.SiLU().eval()


def with_a_shared_layer(model: Small) -> None:
    model.tail[2] = model.tail[0]


def with_a_shared_weight(model: Small) -> None:
    model.tail[2].weight = model.tail[0].weight


def with_a_hook(model: Small) -> None:
    model.tail[1].register_forward_hook(lambda *_: None)


def with_a_tensor_that_may_be_looked_at(model: Small) -> None:
    model.offset = torch.zeros(1)


def with_a_function_that_may_know_a_model(model: Small) -> None:
    model.settings["taps"] = lambda: model


def with_another_dtype(model: Small) -> None:
    model.norm.double()


def without_a_bias(model: Small) -> None:
    model.first.bias = None


def with_a_forward_pass_of_its_own(model: Small) -> None:
    model.forward = lambda x: x  # type: ignore[method-assign]


CHANGES = [
    with_another_value, with_another_width, with_another_stride, with_another_class, with_a_shared_layer,
    with_a_shared_weight, with_a_hook, with_a_tensor_that_may_be_looked_at, with_another_dtype,
    with_a_function_that_may_know_a_model, without_a_bias,
    with_a_forward_pass_of_its_own,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_models_that_differ_otherwise_do_not(change: Callable[[Small], None]) -> None:
    model = small()
    other = copy.deepcopy(model)
    other.offset = model.offset
    assert built_alike(model, other)
    change(other)
    assert not built_alike(model, other)
    assert not built_alike(other, model)


def test_what_two_models_share_may_be_a_layer_of_one() -> None:
    model = small()
    other = copy.deepcopy(model)
    other.offset = model.offset
    model.settings["taps"] = other.settings["taps"] = [model.first]
    assert not built_alike(model, other)
    model.settings["taps"] = other.settings["taps"] = lambda: model
    assert not built_alike(model, other)
    model.settings["taps"] = other.settings["taps"] = torch.relu
    assert built_alike(model, other)


def test_training_mode_is_seen() -> None:
    model = small()
    with pytest.raises(TrainingModeError):
        trace_like(copy.deepcopy(model).train(), EXAMPLE, model, trace(model, EXAMPLE))
