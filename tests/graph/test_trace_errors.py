"""Bad input: a typed error that says what failed, where, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from canon.errors import ExampleError, TraceError, TrainingModeError, UnsupportedModelError
from canon.graph import trace
from tests.networks import Net, conv

EXAMPLE = torch.randn(2, 3, 8, 8)


def small(**layers: Any) -> nn.Module:
    return Net(lambda net, x: net.b(net.a(x).relu()), a=conv(3, 6), b=conv(6, 4), **layers).eval()


def test_training_mode() -> None:
    with pytest.raises(TrainingModeError) as caught:
        trace(small().train(), EXAMPLE)
    assert str(caught.value) == "the model is in training mode. Call model.eval() before tracing"


def test_one_layer_in_training_mode() -> None:
    model = small(n=nn.BatchNorm2d(6))
    model.get_submodule("n").train()
    with pytest.raises(TrainingModeError) as caught:
        trace(model, EXAMPLE)
    expected = "the layer BatchNorm2d is in training mode (at n). Call model.eval() before tracing"
    assert str(caught.value) == expected


def test_not_a_module() -> None:
    with pytest.raises(TraceError, match=r"expected a torch\.nn\.Module, got dict\. Build the model and load"):
        trace({"weight": torch.zeros(1)}, EXAMPLE)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted() -> None:
    scripted = torch.jit.script(nn.Sequential(conv(3, 6)).eval())
    with pytest.raises(TraceError, match=r"TorchScript modules .* Pass the original torch\.nn\.Module"):
        trace(scripted, EXAMPLE)


def test_integer_parameters() -> None:
    model = small()
    model.register_parameter("table", nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False))
    with pytest.raises(UnsupportedModelError, match=r"parameter of dtype torch\.int8 \(at table\)\. Dequantize it"):
        trace(model, EXAMPLE)


class Quantized(nn.Module):
    """Stands for a quantized layer of torch, whose packed weights need a backend."""


def test_quantized_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quantized, "__module__", "torch.ao.nn.quantized.modules.conv")
    with pytest.raises(UnsupportedModelError, match=r"the model is quantized \(at q\)\. Dequantize it"):
        trace(small(q=Quantized()), EXAMPLE)


def test_wrong_shape() -> None:
    with pytest.raises(ExampleError) as caught:
        trace(small(), torch.randn(2, 4, 8, 8))
    text = str(caught.value)
    assert text.startswith("the model does not run on an example of shape (2, 4, 8, 8): RuntimeError")
    assert "(at a)" in text
    assert "Give an example input like those the model was trained on" in text
    assert text.endswith("--size 3x224x224")


def test_wrong_dtype() -> None:
    with pytest.raises(ExampleError) as caught:
        trace(small(), EXAMPLE.double())
    expected = "the example is torch.float64, the model computes in torch.float32. Convert the example with"
    assert str(caught.value).startswith(expected)


def test_no_tensor() -> None:
    with pytest.raises(ExampleError, match=r"the example holds no tensor\. Give an input tensor such as torch\.randn"):
        trace(small(), (3,))


def test_missing_input() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    with pytest.raises(TraceError, match="the model also needs an input 'y'"):
        trace(Two().eval(), EXAMPLE)


class Branching(nn.Module):
    """Control flow over tensor values: neither front end can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.a = conv(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x)
        return y.relu() if bool(y.sum() > 0) else y


def test_untraceable() -> None:
    with pytest.raises(TraceError) as caught:
        trace(Branching().eval(), EXAMPLE)
    text = str(caught.value)
    assert text.startswith("the forward pass cannot be traced. torch.fx: TraceError")
    assert "torch.export: " in text
    assert "(at Branching)" in text
    assert text.endswith("Remove control flow that depends on tensor values, or pass the traceable part of the model")


class Sized(nn.Module):
    """Python control flow over shapes: torch.fx gives up, torch.export does not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(3, 6), conv(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x)
        if y.shape[2] > 4:
            y = y.relu()
        result: Tensor = self.b(y)
        return result


def test_export_takes_over() -> None:
    graph = trace(Sized().eval(), EXAMPLE)
    assert graph.method == "recorded"
    assert [space.name for space in graph.free] == ["a"]
