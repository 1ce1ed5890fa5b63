"""Small ONNX files, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from canon.io import Limits
from canon.io.onnx import load_onnx


def graph(
    nodes: Sequence[Any],
    tensors: Mapping[str, np.ndarray] | None = None,
    *,
    shape: Sequence[int | str] = ("batch", 4, 8, 8),
    opset: int = 17,
) -> Any:
    """A model with the input `x` and the output `y`."""
    made = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in (tensors or {}).items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    """A node whose operands are named in one string, separated by spaces; `_` is left out."""
    return helper.make_node(op, ["" if n == "_" else n for n in inputs.split()], outputs.split(), **attributes)


def write(model: Any, folder: Path) -> Path:
    """Write a model to a file of a folder."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def read(model: Any, folder: Path) -> nn.Module:
    """What Canon makes of a model."""
    return load_onnx(write(model, folder), Limits())


def run(model: Any, x: Tensor) -> list[Tensor]:
    """What onnxruntime computes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    data = model if isinstance(model, (str, Path)) else model.SerializeToString()
    session = onnxruntime.InferenceSession(str(data) if isinstance(data, Path) else data, options)
    return [torch.from_numpy(a) for a in session.run(None, {session.get_inputs()[0].name: x.numpy()})]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Random numbers as a file stores them."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def images(*shape: int) -> Tensor:
    """Random inputs."""
    return torch.randn(shape or (2, 4, 8, 8), generator=torch.Generator().manual_seed(0))


__all__ = ["graph", "images", "node", "numbers", "onnx", "read", "run", "write"]
