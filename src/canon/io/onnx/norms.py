"""Layer norms and RMS norms that an exporter has written out, as the norms that they are.

Until opset 17 there was no operator for them: `(x - mean) / sqrt(mean of squares + ε) · weight + bias`, over the last
axis. What is found becomes one call; whatever else reads a value in between still finds it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import fx
from torch.nn import functional

Shapes = Mapping[fx.Node, torch.Size]

_MULTIPLICATIONS: Final = (torch.mul, operator.mul)
_ADDITIONS: Final = (torch.add, operator.add)
_DIVISIONS: Final = (torch.div, operator.truediv)
_SUBTRACTIONS: Final = (torch.sub, operator.sub)


def spell_norms(graph: fx.Graph, shapes: Shapes) -> dict[fx.Node, fx.Node]:
    """Norms that are written out in a graph become calls; gives what took whose place.

    Args:
        graph: A graph without an output yet; it is changed.
        shapes: What is known of its values.
    """
    found: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        core = _normalised(node, shapes)
        if core is None:
            continue
        x, centred, epsilon = core
        size = int(shapes[x][-1])
        scaled, weight = _with_tensor(node, _MULTIPLICATIONS, size, shapes)
        last, bias = (
            _with_tensor(scaled, _ADDITIONS, size, shapes) if centred and weight is not None else (scaled, None)
        )
        with graph.inserting_after(last):
            norm: Any = functional.layer_norm if centred else functional.rms_norm
            tensors = (weight, bias) if centred else (weight,)
            made = graph.call_function(norm, (x, [size], *tensors, epsilon))
        last.replace_all_uses_with(made)
        found[last] = made
    return found


def _is(node: Any, functions: tuple[Any, ...]) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in functions


def _normalised(node: fx.Node, shapes: Shapes) -> tuple[fx.Node, bool, float] | None:
    """What a node normalises, whether it takes the mean off, and ε; None: it does not."""
    top: Any = None
    below: Any = None
    if _is(node, _DIVISIONS) and len(node.args) == 2:
        top, below = node.args[0], _operand(node.args[1], (torch.sqrt,))
    elif _is(node, _MULTIPLICATIONS) and len(node.args) == 2:
        for one, other in (node.args, node.args[::-1]):
            found = _operand(other, (torch.rsqrt,))
            if found is None:
                root = _operand(other, (torch.reciprocal,))
                root = _over_one(other) if root is None else root
                found = _operand(root, (torch.sqrt,))
            if found is not None:
                top, below = one, found
    if not isinstance(top, fx.Node) or not _is(below, _ADDITIONS) or len(below.args) != 2:
        return None
    numbers = [value for value in below.args if isinstance(value, float | int)]
    squares = [_over_last(value, shapes) for value in below.args if isinstance(value, fx.Node)]
    if len(numbers) != 1 or len(squares) != 1 or _squared(squares[0]) is not top:
        return None
    if _is(top, _SUBTRACTIONS) and len(top.args) == 2 and _over_last(top.args[1], shapes) is top.args[0]:
        x = top.args[0]
        return (x, True, float(numbers[0])) if isinstance(x, fx.Node) and x in shapes else None
    return (top, False, float(numbers[0])) if top in shapes else None


def _operand(node: Any, functions: tuple[Any, ...]) -> Any:
    return node.args[0] if _is(node, functions) and len(node.args) == 1 and not node.kwargs else None


def _over_one(node: Any) -> Any:
    return node.args[1] if _is(node, _DIVISIONS) and len(node.args) == 2 and node.args[0] == 1 else None


def _over_last(node: Any, shapes: Shapes) -> Any:
    """What a mean over the last axis, which stays, is the mean of."""
    if not _is(node, (torch.mean,)) or len(node.args) != 3 or node.args[2] is not True or node.args[0] not in shapes:
        return None
    rank = len(shapes[node.args[0]])
    dims = node.args[1] if isinstance(node.args[1], list | tuple) else [node.args[1]]
    return node.args[0] if [int(dim) % rank for dim in dims] == [rank - 1] else None


def _squared(node: Any) -> Any:
    if _is(node, (torch.pow, operator.pow)) and len(node.args) == 2 and node.args[1] == 2:
        return node.args[0]
    if _is(node, _MULTIPLICATIONS) and len(node.args) == 2 and node.args[0] is node.args[1]:
        return node.args[0]
    return _operand(node, (torch.square,))


def _with_tensor(
    node: fx.Node, functions: tuple[Any, ...], size: int, shapes: Shapes
) -> tuple[fx.Node, fx.Node | None]:
    """The one reader of a value, where it only takes it together with a tensor of one axis, and that tensor."""
    reader = next(iter(node.users)) if len(node.users) == 1 else None
    if reader is None or not _is(reader, functions) or len(reader.args) != 2 or reader.kwargs:
        return node, None
    other = reader.args[1] if reader.args[0] is node else reader.args[0]
    known = isinstance(other, fx.Node) and other.op == "get_attr" and tuple(shapes.get(other, ())) == (size,)
    return (reader, other) if known and isinstance(other, fx.Node) else (node, None)
