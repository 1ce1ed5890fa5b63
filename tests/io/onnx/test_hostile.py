"""Files that lie, ask for too much, or point elsewhere: refused with the reason, quickly, and nothing of them runs."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto

import canon
from canon.errors import CanonError, FileFormatError, LimitError
from canon.io import Limits, read_model
from canon.io.onnx import load_onnx
from canon.io.onnx import wire as wire_format
from tests.io.onnx.graphs import graph, images, node, numbers, read, run, write
from tests.patience import within


def small() -> Any:
    tensors = {
        "a.weight": numbers(6, 4, 3, 3),
        "a.bias": numbers(6),
        "shape": np.array([0, -1]),
        "b.weight": numbers(5, 6),
    }
    return graph(
        [
            node("Conv", "x a.weight a.bias", "h", pads=[1] * 4), node("Relu", "h", "r"),
            node("GlobalAveragePool", "r", "p"), node("Reshape", "p shape", "f"), node("Gemm", "f b.weight", transB=1),
        ],
        tensors,
    )  # fmt: skip


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = small().SerializeToString()
    path = tmp_path / "cut.onnx"
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(CanonError):
            load_onnx(path, Limits())


@pytest.mark.parametrize("data", [b"", b"\x00", b"PK\x03\x04", b"\xff" * 64, b"\x3a\xff\xff\xff\xff\x0f", b"{}"])
def test_what_is_no_model_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "no.onnx"
    path.write_bytes(data)
    with pytest.raises(FileFormatError):
        load_onnx(path, Limits())


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no such file"):
        load_onnx(tmp_path / "nowhere.onnx", Limits())


@pytest.mark.parametrize("dims", [[6, 4, 3, 4], [6, 4, 3], [1 << 40, 1 << 40], [-1, 4, 3, 3], [1 << 62], [1] * 9])
def test_a_lying_shape_is_refused(dims: list[int], tmp_path: Path) -> None:
    model = small()
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(dims)
    with pytest.raises(FileFormatError):
        read(model, tmp_path)


def test_two_graphs_in_one_file_are_refused(tmp_path: Path) -> None:
    whole = small().SerializeToString()
    path = tmp_path / "two.onnx"
    path.write_bytes(whole + whole)
    with pytest.raises(FileFormatError, match="stands twice"):
        load_onnx(path, Limits())


def test_too_many_fields_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_format, "MOST_FIELDS", 10_000)
    path = tmp_path / "many.onnx"
    body = b"\x0a\x00" * 20_000
    path.write_bytes(b"\x42\x02\x10\x11" + b"\x3a" + _varint(len(body)) + body)
    with pytest.raises(LimitError, match="more than 10000 fields"):
        load_onnx(path, Limits())


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += struct.pack("B", number & 127 | 128)
        number >>= 7
    return out + struct.pack("B", number)


BIG = np.array([1 << 15, 1 << 15, 1 << 10])
BOMBS = {
    "ConstantOfShape": [node("ConstantOfShape", "big", "c"), node("Add", "x c")],
    "Expand": [node("Expand", "one big", "c"), node("Add", "x c")],
    "Tile": [node("Tile", "x repeats")],
    "Range": [node("Range", "zero far step", "c"), node("Add", "x c")],
    "Pad": [node("Pad", "x pads")],
    "Resize": [node("Resize", "x _ scales", mode="nearest", coordinate_transformation_mode="asymmetric",
                    nearest_mode="floor")],
    "doubling": [node("Concat", "one one", "c0", axis=0)]
    + [node("Concat", f"c{i} c{i}", f"c{i + 1}", axis=0) for i in range(40)] + [node("Add", "x c40")],
    "many": [node("ConstantOfShape", "medium", f"c{i}") for i in range(400)] + [node("Add", "x c0")],
    "axes": [node("Unsqueeze", "x axes")],
    "sizes side by side": [node("Shape", "x", "s0")]
    + [node("Concat", f"s{i} s{i}", f"s{i + 1}", axis=0) for i in range(34)] + [node("Reshape", "x s34")],
    "sizes squared": [node("Shape", "x", "s0")]
    + [node("Mul", f"s{i} s{i}", f"s{i + 1}") for i in range(34)] + [node("Reshape", "x s34")],
    "unit vectors": [node("Cast", "x", "n", to=7), node("OneHot", "n far values")],
}  # fmt: skip
OPERANDS = {
    "big": BIG, "medium": np.array([1 << 20]), "one": np.ones(1, np.float32),
    "none": np.ones((0, 0, 4), np.float32),
    "repeats": np.array([1, 1, 1 << 20, 1 << 20]), "zero": np.array(0), "far": np.array(1 << 60), "step": np.array(1),
    "values": np.array([0, 1], np.float32),
    "pads": np.array([0, 0, 0, 0, 0, 0, 1 << 40, 0]), "axes": np.arange(100),
    "scales": np.array([1, 1, 1e9, 1e9], np.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_at_once(name: str, tmp_path: Path) -> None:
    path = write(graph(BOMBS[name], OPERANDS), tmp_path)
    with within(5), pytest.raises(CanonError):
        load_onnx(path, Limits())


NAMES = [
    'a");__import__("os").mkdir("pwned");("',
    "forward",
    "__class__.weight",
    "a..b.weight",
    "self",
    "import",
    "\n",
    "0",
]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_are_only_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = small().SerializeToString()
    model = small()
    model.graph.initializer[0].name = model.graph.node[0].input[1] = name
    model.graph.input[0].name = model.graph.node[0].input[0] = f"{name} "
    for made in model.graph.node:
        made.name = name
    ours = read(model, tmp_path)
    (tmp_path / "plain.onnx").write_bytes(text)
    torch.testing.assert_close(ours(images()), run(tmp_path / "plain.onnx", images())[0])
    assert not (tmp_path / "pwned").exists()


def outside(location: str, **numbers_: int) -> Any:
    model = small()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **numbers_}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    return model


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    model = small()
    (tmp_path / "weights.bin").write_bytes(b"12345678" + model.graph.initializer[0].raw_data)
    path = write(outside("weights.bin", offset=8, length=6 * 4 * 9 * 4), tmp_path)
    ours = load_onnx(path, Limits())
    (tmp_path / "weights.bin").unlink()
    torch.testing.assert_close(ours(images()), run(model, images())[0])


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", "link.bin", "folder/secret.bin"]
)
def test_external_data_elsewhere_is_not_opened(location: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(6 * 4 * 9 * 4))
    os.symlink(secret, home / "link.bin")
    os.symlink(tmp_path, home / "folder")
    with pytest.raises(FileFormatError, match="outside the model's folder"):
        read(outside(location), home)


@pytest.mark.parametrize(
    ("location", "settings"),
    [("none.bin", {}), ("", {}), (".", {}), ("w.bin", {"offset": 1 << 40}), ("w.bin", {"offset": -8}), ("w\0.bin", {})],
)
def test_external_data_that_is_not_there_is_told(location: str, settings: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(64))
    with pytest.raises(FileFormatError):
        read(outside(location, **settings), tmp_path)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    side = 1 << 11
    (tmp_path / "w.bin").write_bytes(bytes(4 * side * side))
    model = graph([node("Add", f"x{i} w{i}", f"x{i + 1}") for i in range(4)], shape=(side, side))
    model.graph.input[0].name = "x0"
    model.graph.output[0].name = "x4"
    for index in range(4):
        tensor = model.graph.initializer.add(name=f"w{index}", data_type=TensorProto.FLOAT, dims=(side, side))
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
    with pytest.raises(FileFormatError, match="they overlap"):
        read(model, tmp_path)


BROKEN = {
    "missing value": [node("Add", "x nothing")],
    "made twice": [node("Relu", "x"), node("Relu", "x")],
    "no path": [node("Relu", "y")],
    "constant": [node("Relu", "one")],
    "wrong kernel": [node("Conv", "x one")],
    "wrong type": [node("Transpose", "x", perm="text")],
    "wrong axis": [node("Concat", "x x", axis=77)],
    "unknown GELU": [node("Gelu", "x", approximate="x")],
    "no direction": [node("LSTM", "x none none")],
}


@pytest.mark.parametrize("name", BROKEN)
def test_graphs_that_do_not_fit_are_told(name: str, tmp_path: Path) -> None:
    with pytest.raises(CanonError) as caught:
        read(graph(BROKEN[name], OPERANDS), tmp_path)
    assert caught.value.where


def test_the_lowest_whole_number_is_divided_by_minus_one(tmp_path: Path) -> None:
    lowest = np.array([-(1 << 63), -7, 7])
    divided = [node("Div", "a b", "q"), node("Cast", "q", "f", to=1), node("Mul", "x f")]
    found = read(graph(divided, {"a": lowest, "b": np.array([-1, 2, -2])}, shape=("n", 3)), tmp_path)
    assert found(torch.ones(1, 3)).tolist() == [[-(2.0**63), -3, -3]]


@pytest.mark.parametrize("opset", [1, 6, 99])
def test_other_versions_are_refused(opset: int, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=f"made for operator set {opset}"):
        read(graph([node("Relu", "x")], opset=opset), tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_changed_bytes_never_do_harm(seed: int, tmp_path: Path) -> None:
    whole = bytearray(small().SerializeToString())
    random = np.random.default_rng(seed)
    path = tmp_path / "changed.onnx"
    for _ in range(150):
        data = bytearray(whole)
        for place in random.integers(0, len(data), random.integers(1, 6)):
            data[place] = random.integers(0, 256)
        path.write_bytes(bytes(data))
        with within(5), contextlib.suppress(CanonError):
            load_onnx(path, Limits())


def dense(count: int) -> Any:
    """Every layer reads all layers before it."""
    nodes, names, tensors = [], ["x"], {}
    for index in range(count):
        tensors[f"w{index}"] = numbers(4, 4 * len(names), 1, 1)
        nodes += [
            node("Concat", " ".join(names), f"c{index}", axis=1),
            node("Conv", f"c{index} w{index}", f"v{index}"),
        ]
        names.append(f"v{index}")
    return graph([*nodes, node("Relu", names[-1])], tensors)


def chain(op: str, count: int, tensors: dict[str, np.ndarray] | None = None, **settings: Any) -> Any:
    """One operator after the other."""
    weight = " w" if tensors else ""
    made = [node(op, f"{f'v{i}' if i else 'x'}{weight}", f"v{i + 1}", **settings) for i in range(count)]
    return graph([*made, node("Relu", f"v{count}")], tensors)


def sums(count: int) -> Any:
    """Sums of everything before them, which are a square of operations."""
    names, nodes = ["x"], []
    for index in range(count):
        nodes.append(node("Sum", " ".join(names), f"s{index}"))
        names.append(f"s{index}")
    return graph([*nodes, node("Relu", names[-1])])


LARGE = {
    "40,000 nodes": lambda: chain("Neg", 40_000),
    "2,000 convolutions": lambda: chain("Conv", 2000, {"w": numbers(4, 4, 3, 3) / 10}, pads=[1] * 4),
    "300 dense skips": lambda: dense(300),
    "sums of sums": lambda: sums(300),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_graphs_are_read_or_refused_in_seconds(name: str, tmp_path: Path) -> None:
    path = write(LARGE[name](), tmp_path)
    with within(10), contextlib.suppress(LimitError):
        found = read_model(path)
        canon.trace(found.model, found.example)
