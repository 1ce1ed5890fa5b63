"""Branches that are decided when the file is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.values import Constant, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder


@operator("If")
def branch(b: Builder, node: Node, condition: Value) -> Result:
    """One of two graphs; exporters ask for the number of axes or for a size, which are known."""
    if not isinstance(condition, Constant) or condition.tensor.numel() != 1:
        raise UnsupportedModelError(
            "the model has control flow: If, decided by values",
            hint="Canon follows a fixed sequence of operations. Export the model without branches and loops",
        )
    return b.inside(node.branches["then_branch" if condition.tensor.item() else "else_branch"])
