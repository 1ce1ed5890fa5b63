"""Quantized files: weights exactly what their whole numbers stand for, outputs within what rounding does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from canon.errors import UnsupportedModelError
from canon.graph import trace
from canon.io.loading import read_model
from canon.io.onnx.save import save_onnx
from tests.io.onnx.graphs import graph, images, node, numbers, read, run
from tests.io.onnx.test_optimised import optimised


class Small(nn.Module):
    """Convolutions, a skip, a concatenation, pools and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.third, self.head = nn.Conv2d(16, 12, 1), nn.Linear(12, 5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.cat([torch.relu(self.second(x) + x), nn.functional.max_pool2d(x, 1)], 1)
        result: Tensor = self.head(nn.functional.adaptive_avg_pool2d(torch.relu(self.third(x)), 1).flatten(1))
        return result


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantized") / "plain.onnx"
    save_onnx(Small(), images(8, 3, 16, 16), path)
    return optimised(path, "BASIC", path.with_name("folded.onnx"))


@pytest.fixture(autouse=True)
def silent(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level("CRITICAL")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *args, **kwargs: None)
        yield


def quantize(source: Path, target: Path, form: str, per_channel: bool, activations: str) -> Path:
    """What onnxruntime's quantizer makes of a file."""
    from onnxruntime import quantization

    if form == "dynamic":
        quantization.quantize_dynamic(str(source), str(target), per_channel=per_channel)
        return target

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            name = onnx.load(source).graph.input[0].name
            self.batches = iter([{name: x[None].numpy()} for x in images(8, 3, 16, 16)])

        def get_next(self) -> Any:
            return next(self.batches, None)

    quantization.quantize_static(
        str(source), str(target), Reader(), quant_format=getattr(quantization.QuantFormat, form),
        per_channel=per_channel, weight_type=quantization.QuantType.QInt8,
        activation_type=getattr(quantization.QuantType, activations),
    )  # fmt: skip
    return target


FORMS = [
    ("dynamic", False, "QUInt8"), ("dynamic", True, "QUInt8"), ("QDQ", False, "QInt8"), ("QDQ", True, "QUInt8"),
    ("QOperator", False, "QUInt8"), ("QOperator", True, "QInt8"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("form", "per_channel", "activations"), FORMS)
def test_quantized_files_are_dequantized(
    form: str, per_channel: bool, activations: str, again: bool, plain: Path, tmp_path: Path
) -> None:
    path = quantize(plain, tmp_path / "quantized.onnx", form, per_channel, activations)
    if again:
        path = optimised(path, "ALL", tmp_path / "optimised.onnx")
    x, model = images(8, 3, 16, 16), Small()
    found = read_model(path)
    assert found.precision in ("int8", "uint8")
    assert any("dequantized" in note and found.precision in note for note in found.notes)
    with torch.no_grad():
        got, theirs, expected = found.model(x), run(path, x)[0], model(x)
    size = float(expected.abs().max())
    assert float((got - theirs).abs().max()) < 0.1 * size  # what rounding of activations does
    assert float((got - expected).abs().max()) < 0.05 * size  # what rounding of weights does
    assert len(trace(found.model, x).free) == len(trace(model, x).free) == 2
    for name, weight in (("first.weight", model.first.weight), ("head.weight", model.head.weight)):
        step = float(weight.detach().abs().max()) / 127
        close = [p for _, p in found.model.named_parameters() if p.shape == weight.shape]
        assert min(float((p - weight).detach().abs().max()) for p in close) <= 0.51 * step, name


def test_numbers_are_exactly_what_they_stand_for(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(-128, 128, (6, 4, 3, 3)).astype(np.int8)
    scale, zero = np.linspace(0.01, 0.06, 6).astype(np.float32), np.arange(6).astype(np.int8)
    nodes = [
        node("DequantizeLinear", "a.weight_quantized scale zero", "w", axis=0),
        node("Conv", "x w", pads=[1] * 4),
    ]
    model = graph(nodes, {"a.weight_quantized": stored, "scale": scale, "zero": zero})
    ours: Any = read(model, tmp_path)
    expected = (stored.astype(np.float64) - zero.reshape(-1, 1, 1, 1)) * scale.reshape(-1, 1, 1, 1)
    assert np.array_equal(ours.a.weight.detach().numpy(), expected.astype(np.float32))
    torch.testing.assert_close(ours(images()), run(model, images())[0], rtol=1e-5, atol=1e-5)


def test_saturation_at_zero_is_a_relu_and_only_where_it_is_needed(tmp_path: Path) -> None:
    tensors = {"w": numbers(4, 4, 1, 1), "s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)}
    pair = [node("QuantizeLinear", "h s z", "q"), node("DequantizeLinear", "q s z", "d")]
    fused = graph([node("Conv", "x w", "h"), *pair, node("Conv", "d w")], tensors)
    kept = graph([node("Conv", "x w", "c"), node("Relu", "c", "h"), *pair, node("Conv", "d w")], tensors)
    for model in (fused, kept):
        ours: Any = read(model, tmp_path)
        assert [n.target for n in ours.graph.nodes if n.op == "call_function"] == [nn.functional.relu]
        assert float((ours(images()) - run(model, images())[0]).detach().abs().max()) < 1.0


def test_a_scale_that_is_read_otherwise_than_written_is_refused(tmp_path: Path) -> None:
    """Two steps with different scales multiply: leaving rounding out would leave the factor out."""
    tensors: dict[str, np.ndarray] = {
        "s": np.array(0.1, np.float32),
        "t": np.array(0.2, np.float32),
        "z": np.array(0, np.int8),
    }
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q t z")]
    with pytest.raises(UnsupportedModelError, match="another scale"):
        read(graph(nodes, tensors), tmp_path)
    with pytest.raises(UnsupportedModelError, match="as such"):
        read(graph([node("QuantizeLinear", "x s z", "q"), node("Neg", "q")], tensors), tmp_path)


def test_a_measured_scale_of_another_value_is_refused(tmp_path: Path) -> None:
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"), node("Neg", "x", "n"), node("DynamicQuantizeLinear", "n", "p t o"),
        node("ConvInteger", "q w z", "i"), node("Cast", "i", "f", to=TensorProto.FLOAT),
    ]  # fmt: skip
    weight = {"w": np.random.default_rng(0).integers(0, 255, (4, 4, 1, 1)).astype(np.uint8)}
    model = graph([*nodes, node("Mul", "f s")], weight)
    got, theirs = read(model, tmp_path)(images()).detach(), run(model, images())[0]
    assert float((got - theirs).abs().max()) < 0.01 * float(theirs.abs().max())
    with pytest.raises(UnsupportedModelError, match="not their scale"):
        read(graph([*nodes, node("Mul", "f t")], weight), tmp_path)


def test_quantized_lstm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "w": rng.integers(-63, 64, (1, 5, 16)).astype(np.int8), "r": rng.integers(-63, 64, (1, 4, 16)).astype(np.int8),
        "b": numbers(1, 32), "ws": np.array([0.01], np.float32), "wz": np.array([3], np.int8),
        "rs": np.array([0.01], np.float32), "rz": np.array([0], np.int8),
    }  # fmt: skip
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    made = helper.make_node("DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=4)
    model, x = graph([made], tensors, shape=(7, 2, 5)), images(7, 2, 5)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with torch.no_grad():
        assert float((read(model, tmp_path)(x) - run(model, x)[0]).abs().max()) < 0.03


@pytest.mark.parametrize(("step", "cut"), [(1.0, False), (0.1, True)])
def test_saturation_of_a_silu_is_a_relu_only_where_it_does_something(step: float, cut: bool, tmp_path: Path) -> None:
    """A SiLU is never below -0.28: in steps of one it rounds to zero there, in steps of a tenth it is cut off."""
    nodes = [
        node("Conv", "x w", "a"),
        node("Sigmoid", "a", "s"),
        node("Mul", "a s", "b"),
        node("QuantizeLinear", "b step zero", "c"),
        node("DequantizeLinear", "c step zero"),
    ]
    tensors = {"w": numbers(4, 3, 1, 1), "step": np.array(step, np.float32), "zero": np.array(0, np.uint8)}
    ours: Any = read(graph(nodes, tensors, shape=("n", 3, 8, 8)), tmp_path)
    assert any(n.target is nn.functional.silu for n in ours.graph.nodes)
    assert any(n.target is nn.functional.relu for n in ours.graph.nodes) == cut
