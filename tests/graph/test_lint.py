"""The lint of a graph notices what must never reach a rewrite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from canon.errors import TraceError
from canon.graph import ChannelGraph, trace
from canon.graph.lint import lint
from tests.networks import Net, conv, head


def traced() -> tuple[ChannelGraph, dict[str, tuple[int, ...]]]:
    model = Net(
        lambda net, x: head(net, net.n(net.a(x)).relu()), a=conv(3, 6), n=nn.BatchNorm2d(6), fc=nn.Linear(6, 4)
    ).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return trace(model, torch.randn(2, 3, 8, 8)), shapes


def test_a_traced_graph_is_sound() -> None:
    lint(*traced())


@pytest.mark.parametrize(
    ("tensor", "shape", "message"),
    [
        ("a.weight", (7, 3, 3, 3), "segments of 'a.weight' cover 6 of 7 entries"),
        ("a.bias", (5,), "bias of a has shape"),
        ("fc.weight", (4, 7), "segments of 'fc.weight' cover 6 of 7 entries"),
        ("n.weight", (5,), "norm 'n.weight' ends at 5, not 6"),
    ],
)
def test_a_tensor_of_another_shape_is_noticed(tensor: str, shape: tuple[int, ...], message: str) -> None:
    graph, shapes = traced()
    with pytest.raises(AssertionError, match=message):
        lint(graph, {**shapes, tensor: shape})


def test_a_gap_between_segments_is_noticed() -> None:
    graph, shapes = traced()
    first = graph.maps[0]
    moved = replace(first, rows=(replace(first.rows[0], offset=1),))
    with pytest.raises(AssertionError, match="leave a gap at 0"):
        lint(replace(graph, maps=(moved, *graph.maps[1:])), shapes)


def test_a_segment_of_the_wrong_length_is_noticed() -> None:
    graph, shapes = traced()
    first = graph.maps[0]
    short = replace(first, rows=(replace(first.rows[0], length=5),))
    with pytest.raises(AssertionError, match="cut short"):
        lint(replace(graph, maps=(short, *graph.maps[1:])), shapes)


def test_a_norm_that_is_narrower_than_its_value_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(6, 4, 3)).eval()
    with pytest.raises(TraceError, match="has 5 numbers, and its value 6 channels"):
        trace(model, torch.randn(1, 3, 8, 8))
