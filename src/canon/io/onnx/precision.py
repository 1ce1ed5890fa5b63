"""Files that hold numbers of several floating point types are read as float32 throughout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from canon.io.onnx.model import Branch, Model, Node, StoredTensor

_HALF: Final = {10: torch.float16, 16: torch.bfloat16}
_FULL: Final = frozenset({1, 11})


def all_nodes(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Every node, those of branches included."""
    for node in nodes:
        yield node
        for branch in node.branches.values():
            yield from all_nodes(branch.nodes)


def is_mixed(model: Model) -> bool:
    """Whether a file computes in half precision in some places and not in others."""
    kinds = {port.dtype for port in model.inputs} | _kinds(Branch(model.nodes, model.tensors, ()))
    return bool(kinds & _HALF.keys()) and bool(kinds & _FULL)


def _kinds(graph: Branch) -> set[int]:
    found = {tensor.dtype for tensor in graph.tensors}
    for node in all_nodes(graph.nodes):
        found.update(value.dtype for value in node.attributes.values() if isinstance(value, StoredTensor))
        if node.op == "Cast":
            found.add(node.integer("to", 1))
        for branch in node.branches.values():
            found.update(tensor.dtype for tensor in branch.tensors)
    return found


def widened(dtype: torch.dtype) -> torch.dtype:
    """The type that numbers of such a file are read in."""
    return torch.float32 if dtype in _HALF.values() else dtype
