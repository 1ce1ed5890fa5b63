"""Every operator against the expected outputs that ONNX publishes: right, or refused, but never wrong."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto, numpy_helper

from canon.errors import CanonError
from canon.io import Limits
from canon.io.onnx import load_onnx

USUAL = (
    "add attention averagepool batch_normalization clip concat conv convtranspose depthtospace div expand flatten "
    "gather gelu gemm globalaveragepool globalmaxpool groupnormalization hardsigmoid hardswish instance_normalization "
    "layernormalization leakyrelu lrn matmul maxpool mul pad prelu reducemean relu reshape resize sigmoid slice "
    "softmax spacetodepth split squeeze sub topk transpose unsqueeze where"
).split()
"""Modules of test cases for the operators that image networks are made of."""

FEWEST = {("usual", True): 205, ("all", False): 640, ("all", True): 610}
"""How many cases must be right, with weights as tensors of the file or as inputs."""


def collect(which: str) -> list[Any]:
    """Test cases of the onnx package."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = importlib.import_module("onnx.backend.test.case.node")
        if which == "all":
            return list(cases.collect_testcases(None))
        for name in USUAL:
            importlib.import_module(f"onnx.backend.test.case.node.{name}")
    return [case for case in cases._NodeTestCases if any(n.op_type.lower() in USUAL for n in case.model.graph.node)]


def prepared(case: Any, constant: bool) -> tuple[Any, list[np.ndarray]] | None:
    """A case's model and inputs; with `constant`, all but the first become tensors of the model."""
    if any(node.domain for node in case.model.graph.node):
        return None
    given = [np.asarray(array) for array in case.data_sets[0][0]]
    if not constant:
        return case.model, given
    if len(given) < 2 or len(case.model.graph.input) != len(given):
        return None
    model = ModelProto()
    model.CopyFrom(case.model)
    for port, array in list(zip(model.graph.input, given, strict=True))[1:]:
        model.graph.initializer.append(numpy_helper.from_array(array, port.name))
    del model.graph.input[1:]
    return model, given[:1]


def same(got: torch.Tensor, expected: Any) -> bool:
    array = np.asarray(expected)
    coarse = array.dtype == np.float16
    if tuple(got.shape) != array.shape:
        return False
    tolerance = {"rtol": 1e-2, "atol": 1e-3} if coarse else {"rtol": 1e-3, "atol": 1e-5}
    return np.allclose(got.double().numpy(), array.astype(np.float64), equal_nan=True, **tolerance)


def outcome(case: Any, constant: bool, path: Path) -> str:
    """`right`, `refused`, `stopped` or `wrong`."""
    try:
        found = prepared(case, constant)
        if found is None:
            return "refused"
        inputs = [torch.from_numpy(np.array(array)) for array in found[1]]
    except (NotImplementedError, TypeError, ValueError):
        return "refused"  # element types that torch or numpy does not have
    path.write_bytes(found[0].SerializeToString())
    try:
        model = load_onnx(path, Limits())
    except CanonError:
        return "refused"
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = model(*inputs)
    except (NotImplementedError, RuntimeError, IndexError):
        return "stopped"
    got = [result] if isinstance(result, torch.Tensor) else list(result)
    good = len(got) <= len(case.data_sets[0][1]) and all(map(same, got, case.data_sets[0][1]))
    return "right" if good else "wrong"


@pytest.mark.parametrize(
    ("which", "constant"),
    [key if key[0] == "usual" else pytest.param(*key, marks=pytest.mark.slow) for key in FEWEST],
)
def test_published_cases_are_right_or_refused(which: str, constant: bool, tmp_path: Path) -> None:
    found = {case.name: outcome(case, constant, tmp_path / "case.onnx") for case in collect(which)}
    assert not [name for name, result in found.items() if result == "wrong"]
    assert sum(result == "right" for result in found.values()) >= FEWEST[which, constant]


def test_the_comparison_can_fail() -> None:
    assert same(torch.ones(3), np.ones(3, np.float32))
    assert not same(torch.ones(3), np.zeros(3, np.float32))
    assert not same(torch.ones(1, 3), np.ones(3, np.float32))
