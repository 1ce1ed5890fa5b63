"""Files that onnxruntime optimised: fused operators and channels in blocks come back as plain layers."""

from __future__ import annotations

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
from canon.io import Limits
from canon.io.onnx import load_onnx
from canon.io.onnx.operators.blocked import unblocked
from canon.io.onnx.save import save_onnx
from tests.io.onnx.graphs import graph, images, node, numbers, read, run

MICROSOFT = "com.microsoft"
LEVELS = ("BASIC", "EXTENDED", "ALL")


class Mixed(nn.Module):
    """Dense, grouped and depthwise convolutions with widths that fill no block, a skip and two kinds of pool."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first, self.norm = nn.Conv2d(3, 20, 3, padding=1, bias=False), nn.BatchNorm2d(20)
        self.depth, self.wide = nn.Conv2d(20, 20, 3, padding=1, groups=20), nn.Conv2d(20, 32, 1)
        self.groups, self.back = nn.Conv2d(32, 32, 3, padding=1, groups=2), nn.Conv2d(32, 20, 3, padding=1)
        self.head = nn.Linear(20, 5)
        for parameter in self.parameters():
            size = torch.exp(torch.randn(len(parameter), generator=generator))  # no two channels are alike
            drawn = torch.randn(parameter.shape, generator=generator) / parameter[0].numel() ** 0.5
            parameter.data = drawn * size.reshape(-1, *[1] * (parameter.ndim - 1))
        self.norm.running_var = torch.rand(20, generator=generator) + 0.5
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        y = torch.relu(self.wide(nn.functional.leaky_relu(self.depth(x), 0.1)))
        x = torch.relu(self.back(nn.functional.max_pool2d(torch.sigmoid(self.groups(y)), 1)) + x)
        return torch.relu(self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)))


def optimised(source: Path, level: str, target: Path) -> Path:
    """What onnxruntime makes of a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath, options.log_severity_level = str(target), 4
    onnxruntime.InferenceSession(str(source), options)
    return target


@pytest.mark.parametrize("level", LEVELS)
def test_a_network_comes_back_from_every_level(level: str, tmp_path: Path) -> None:
    model, x = Mixed(), images(2, 3, 16, 16)
    save_onnx(model, x, tmp_path / "plain.onnx")
    path = optimised(tmp_path / "plain.onnx", level, tmp_path / "optimised.onnx")
    domains = {entry.domain for entry in onnx.load(path).graph.node}
    assert level == "BASIC" or any(domain.startswith(MICROSOFT) for domain in domains)
    ours = load_onnx(path, Limits())
    torch.testing.assert_close(ours(x), model(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours(x), run(path, x)[0], rtol=1e-5, atol=1e-5)
    widths = sorted(space.width for space in trace(ours, x).free)
    assert widths == sorted(space.width for space in trace(model, x).free)


class Gated(nn.Module):
    """A gate by channel, of widths that fill no block: the gate of what fills a block is a half and not zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.squeeze, self.excite = nn.Conv2d(3, 36, 3), nn.Conv2d(36, 18, 1), nn.Conv2d(18, 36, 1)
        self.last, self.head = nn.Conv2d(36, 20, 1), nn.Linear(20, 5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(nn.functional.silu(self.first(x)), 1)
        x = x * torch.sigmoid(self.excite(nn.functional.silu(self.squeeze(x))))
        result: Tensor = self.head(torch.relu(self.last(x)).flatten(1))
        return result


def test_a_gate_in_blocks_has_the_channels_that_it_gates(tmp_path: Path) -> None:
    model, x = Gated(), images(2, 3, 16, 16)
    save_onnx(model, x, tmp_path / "plain.onnx")
    path = optimised(tmp_path / "plain.onnx", "ALL", tmp_path / "optimised.onnx")
    ours = load_onnx(path, Limits())
    torch.testing.assert_close(ours(x), model(x), rtol=1e-5, atol=1e-5)
    shapes = sorted(tuple(p.shape) for p in ours.parameters())
    assert shapes == sorted(tuple(p.shape) for p in model.parameters())


def test_blocks_of_unknown_size_are_refused(tmp_path: Path) -> None:
    """Weights without any structure fit blocks of 8 and of 16 alike."""
    weight = numbers(32, 32, 1, 1)
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["a"], domain=f"{MICROSOFT}.nchwc"),
        helper.make_node("Conv", ["a", "w"], ["b"], domain=f"{MICROSOFT}.nchwc"),
        helper.make_node("ReorderOutput", ["b"], ["y"], domain=f"{MICROSOFT}.nchwc", channels=32),
    ]
    with pytest.raises(UnsupportedModelError, match="stored in blocks"):
        read(graph(nodes, {"w": weight}, shape=("n", 32, 8, 8)), tmp_path)


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("norms", [0, 30])
def test_blocks_are_found_by_the_weights(norms: int, block: int, tmp_path: Path) -> None:
    """Norms that stand alone, as a DenseNet has them, are stored alike in blocks of any size, and tell nothing."""
    plain = torch.from_numpy(numbers(32, 32, 3, 3) * np.exp(numbers(32, 1, 1, 1, seed=1)))
    apart = plain.reshape(32 // block, block, 32 // block, block, 3, 3).permute(0, 2, 4, 5, 3, 1)
    stored = apart.reshape(plain.shape).contiguous()
    assert torch.equal(unblocked(stored, 1, block), plain)
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["a"], domain=f"{MICROSOFT}.nchwc"),
        *(
            helper.make_node(
                "Conv", [f"a{i}" if i else "a", "scale"], [f"a{i + 1}"], domain=f"{MICROSOFT}.nchwc", group=32
            )
            for i in range(norms)
        ),
        helper.make_node(
            "Conv", [f"a{norms}" if norms else "a", "w"], ["b"], domain=f"{MICROSOFT}.nchwc", pads=[1] * 4
        ),
        helper.make_node("ReorderOutput", ["b"], ["y"], domain=f"{MICROSOFT}.nchwc", channels=32),
    ]
    weights = {"w": stored.numpy(), "scale": np.exp(numbers(32, 1, 1, 1, seed=2))}
    ours: Any = read(graph(nodes, weights, shape=("n", 32, 8, 8)), tmp_path)
    (layer,) = [module for module in ours.modules() if isinstance(module, nn.Conv2d) and module.groups == 1]
    torch.testing.assert_close(layer.weight.data, plain)


FUSED: dict[str, tuple[Any, dict[str, np.ndarray], tuple[int, ...]]] = {
    "FusedConv": (
        helper.make_node("FusedConv", ["x", "w", "b"], ["y"], domain=MICROSOFT, activation="HardSigmoid",
                         activation_params=[0.3, 0.4]),
        {"w": numbers(6, 4, 3, 3), "b": numbers(6)}, (2, 4, 8, 8),
    ),
    "FusedGemm": (
        helper.make_node("FusedGemm", ["x", "w", "b"], ["y"], domain=MICROSOFT, activation="LeakyRelu",
                         activation_alpha=0.3, transB=1, alpha=0.5),
        {"w": numbers(6, 8), "b": numbers(6)}, (2, 8),
    ),
    "FusedMatMul": (
        helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain=MICROSOFT, alpha=0.5, transB=1),
        {"w": numbers(6, 8)}, (2, 3, 8),
    ),
    "BiasGelu": (helper.make_node("BiasGelu", ["x", "b"], ["y"], domain=MICROSOFT), {"b": numbers(8)}, (2, 8)),
    "Gelu": (helper.make_node("Gelu", ["x"], ["y"], domain=MICROSOFT), {}, (2, 8)),
    "FastGelu": (helper.make_node("FastGelu", ["x", "b"], ["y"], domain=MICROSOFT), {"b": numbers(8)}, (2, 8)),
    "QuickGelu": (helper.make_node("QuickGelu", ["x"], ["y"], domain=MICROSOFT, alpha=1.5), {}, (2, 8)),
    "SkipLayerNormalization": (
        helper.make_node("SkipLayerNormalization", ["x", "x", "g", "b", "c"], ["y"], domain=MICROSOFT, epsilon=1e-5),
        {"g": numbers(8), "b": numbers(8, seed=1), "c": numbers(8, seed=2)}, (2, 3, 8),
    ),
    "SkipSimplifiedLayerNormalization": (
        helper.make_node("SkipSimplifiedLayerNormalization", ["x", "x", "g"], ["y"], domain=MICROSOFT, epsilon=1e-5),
        {"g": numbers(8)}, (2, 3, 8),
    ),
    "SimplifiedLayerNormalization": (
        helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["y"], epsilon=1e-5), {"g": numbers(8)}, (2, 3, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_fused_operators(name: str, tmp_path: Path) -> None:
    made, tensors, shape = FUSED[name]
    model, x = graph([made], tensors, shape=shape), images(*shape)
    model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    torch.testing.assert_close(read(model, tmp_path)(x), run(model, x)[0], rtol=1e-5, atol=1e-5)


def test_the_sum_before_a_norm_can_be_read(tmp_path: Path) -> None:
    made = helper.make_node("SkipLayerNormalization", ["x", "x", "g"], ["n", "", "", "s"], domain=MICROSOFT)
    model, x = graph([made, node("Add", "n s")], {"g": numbers(8)}, shape=(2, 3, 8)), images(2, 3, 8)
    model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    torch.testing.assert_close(read(model, tmp_path)(x), run(model, x)[0], rtol=1e-5, atol=1e-5)


def half(model: nn.Module, x: Tensor, path: Path, cast: bool) -> Path:
    """A float16 file; with casts, its input and output stay float32 and its norm is computed so."""
    save_onnx(model, x, path)
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    (given,), (result,) = proto.graph.input, proto.graph.output
    if not cast:
        for port in (given, result):
            port.type.tensor_type.elem_type = TensorProto.FLOAT16
    else:
        for entry in proto.graph.node:
            entry.input[:] = ["half" if name == given.name else name for name in entry.input]
            entry.output[:] = ["rough" if name == result.name else name for name in entry.output]
        proto.graph.node.append(helper.make_node("Cast", [given.name], ["half"], to=TensorProto.FLOAT16))
        proto.graph.node.append(helper.make_node("Cast", ["rough"], [result.name], to=TensorProto.FLOAT))
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("cast", [False, True])
def test_float16(cast: bool, tmp_path: Path) -> None:
    model, x = Mixed(), images(2, 3, 16, 16)
    ours: Any = load_onnx(half(model, x, tmp_path / "half.onnx", cast), Limits())
    assert ours.meta["precision"] == ("float16" if cast else None)
    assert {p.dtype for p in ours.parameters()} == {torch.float32 if cast else torch.float16}
    with torch.no_grad():
        got, expected = ours(x if cast else x.half()).float(), model(x)
    assert float((got - expected).abs().max()) < 5e-3 * float(expected.abs().max())
    assert bool(ours.meta["notes"]) == cast
