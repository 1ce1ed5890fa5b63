"""What a graph may be made of, looked at before anything is built."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from canon.errors import LimitError, UnsupportedModelError
from canon.io.onnx.model import Model, Node
from canon.io.onnx.operators import lookup
from canon.io.onnx.precision import all_nodes

MOST_NODES: Final = 20_000
"""Nodes of a graph, and operations that they become. Public networks have a few thousand."""


def check_operators(model: Model) -> None:
    """Refuse what cannot be built, naming everything at once."""
    count = sum(1 for _ in all_nodes(model.nodes))
    if count > MOST_NODES:
        raise LimitError(f"the graph has {count} nodes, and at most {MOST_NODES} are allowed")
    known_operators(model.nodes)


def known_operators(nodes: Iterable[Node]) -> None:
    """Refuse nodes that no builder knows. Branches are looked at when they are taken."""
    nodes = list(nodes)
    control = sorted({node.op[:40] for node in nodes if node.has_graph and not node.branches})
    if control:
        raise UnsupportedModelError(
            f"the model has control flow: {', '.join(control[:20])}",
            hint="Canon follows a fixed sequence of operations. Export the model without branches and loops",
        )
    unknown = sorted({f"{n.domain}.{n.op}".lstrip(".")[:60] for n in nodes if lookup(n.op, n.domain) is None})
    if unknown:
        raise UnsupportedModelError(
            f"the model uses {len(unknown)} operators that Canon does not read: {', '.join(unknown[:40])}",
            hint="docs/onnx.md lists those that it reads",
        )
