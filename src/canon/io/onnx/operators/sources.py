"""Tensors that come from nowhere, and the sizes of those that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from canon.errors import SIZE_HINT, UnsupportedModelError
from canon.io.onnx.model import Node, StoredTensor
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.operators.shaping import sizes_of
from canon.io.onnx.values import Constant, Sizes, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder


@operator("Constant")
def constant(b: Builder, node: Node) -> Result:
    """A tensor that stands in the node itself."""
    value = node.attributes.get("value")
    if isinstance(value, StoredTensor):
        return Constant(b.read(value))
    for name, dtype in (("value_float", torch.float32), ("value_floats", torch.float32), ("value_int", torch.int64),
                        ("value_ints", torch.int64)):  # fmt: skip
        if name in node.attributes:
            return Constant(torch.tensor(node.attributes[name], dtype=dtype))
    raise UnsupportedModelError("a constant that holds no numbers")


@operator("ConstantOfShape")
def constant_of_shape(b: Builder, node: Node, shape: Value) -> Result:
    """One number everywhere."""
    stored = node.attributes.get("value")
    number = b.read(stored) if isinstance(stored, StoredTensor) else torch.zeros(1)
    if number.numel() != 1:
        raise ValueError("more than one number to fill a tensor with")
    return b.call(torch.full, sizes_of(shape), number.item(), dtype=number.dtype)


@operator("Range")
def arange(b: Builder, node: Node, start: Value, limit: Value, step: Value) -> Result:
    """Numbers at equal distances."""
    items: list[Any] = []
    dtype = torch.int64
    for value in (start, limit, step):
        if isinstance(value, Constant):
            items.append(value.tensor.item())
            dtype = value.tensor.dtype
        elif isinstance(value, Sizes):
            items += value.items
        else:
            raise UnsupportedModelError("a range whose ends are computed from values")
    return b.call(torch.arange, *items, dtype=dtype)


@operator("Shape")
def shape(b: Builder, node: Node, x: Value) -> Result:
    """The sizes of all axes, or of some."""
    start, end = node.integer("start", 0), node.attributes.get("end")
    if isinstance(x, Constant):
        return Constant(torch.tensor(tuple(x.tensor.shape)[start:end], dtype=torch.int64))
    x = b.activation(x)
    return Sizes(tuple(b.size(x, axis) for axis in range(x.rank))[start:end])


@operator("Size")
def size(b: Builder, node: Node, x: Value) -> Result:
    """The number of elements."""
    if isinstance(x, Constant):
        return Constant(torch.tensor(x.tensor.numel()))
    if isinstance(x, Sizes):
        return Constant(torch.tensor(len(x.items)))
    counts = {hint.numel() for hint in b.activation(x).hints}
    if len(counts) > 1:
        raise UnsupportedModelError("the number of elements of an activation is used as a number", hint=SIZE_HINT)
    return Constant(torch.tensor(counts.pop()))


@operator("NonZero")
def nonzero(b: Builder, node: Node, x: Value) -> Result:
    """Where a constant is not zero."""
    if not isinstance(x, Constant):
        raise UnsupportedModelError("places that are chosen by values")
    b.spend(x.tensor.numel() * max(1, x.rank))
    return Constant(x.tensor.nonzero().t().contiguous())
