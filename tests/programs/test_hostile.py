"""Programs that were made to keep a verifier busy: done or refused within bounds."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import fx, nn

from canon.errors import TraceError
from canon.graph import trace
from canon.normal import Outline, house, outline_of
from canon.normal.nodes import NotNormal
from tests.patience import within
from tests.programs.small import example, key, owner


def many_operations(count: int) -> fx.GraphModule:
    graph = fx.Graph()
    node = graph.placeholder("x")
    for _ in range(count):
        node = graph.call_function(torch.relu, (node,))
    graph.output(node)
    return fx.GraphModule({}, graph).eval()


def many_layers(count: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(count) for layer in (nn.Conv2d(3, 3, 1), nn.ReLU())]
    return fx.symbolic_trace(nn.Sequential(*layers).double().eval())


def dense_skips(count: int) -> fx.GraphModule:
    graph = fx.Graph()
    values = [graph.placeholder("x")]
    for _ in range(count):
        values.append(graph.call_function(torch.relu, (graph.call_function(torch.cat, (list(values), 1)),)))
    graph.output(values[-1])
    return fx.GraphModule({}, graph).eval()


def test_too_many_operations_are_refused() -> None:
    with pytest.raises(NotNormal, match="operations"):
        house(many_operations(40_000), owner(), example())


class ManyOperations(nn.Module):
    """As a module, whose program nobody has written down yet."""

    def __init__(self, count: int, *, asks: bool) -> None:
        super().__init__()
        self.layer, self.count, self.asks = nn.Conv2d(3, 4, 1), count, asks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        if self.asks and len(x) < 0:  # what torch.fx cannot follow
            return x
        for _ in range(self.count):
            x = torch.relu(x)
        return x


@pytest.mark.parametrize("asks", [False, True])
def test_a_module_of_too_many_operations_is_refused(asks: bool) -> None:
    with within(10), pytest.raises(TraceError, match=r"more than (20|12),000 operations"):
        trace(ManyOperations(40_000, asks=asks).eval(), example().float())


def test_two_thousand_layers() -> None:
    suspect = many_layers(2_000)
    with within(10):
        found = house(suspect, suspect, example())
    assert found.whole
    assert not found.missing


def test_three_hundred_dense_skips() -> None:
    suspect = dense_skips(12)
    assert house(suspect, suspect, example()).whole
    with within(20), contextlib.suppress(NotNormal):
        house(dense_skips(300), owner(), example())


def test_two_kinds_of_programs_that_keys_refuse() -> None:
    assert outline_of(many_operations(40_000)) is None
    outline = key().program
    assert outline is not None
    for damage in ("call_function", "Conv2d", '"node":0', "torch.cat"):
        with pytest.raises(ValueError, match=r"program|name|operand|operation"):
            Outline.unpacked(Outline(outline.text.replace(damage, "os.system")).packed())
    with pytest.raises(ValueError, match="damaged"):
        Outline.unpacked(outline.packed()[:-12])
