"""Layouts: what only moves entries goes behind functions of one number, layers of one position, and constants."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from canon.graph.modules import ACTIVATIONS
from canon.normal.running import Running, called

LAYOUTS: Final = ("permute", "transpose", "movedim", "swapaxes", "flatten", "unflatten", "reshape", "view")
BOTH: Final = frozenset({"add", "mul", "sub", "iadd"})
POINTWISE: Final = frozenset(
    "relu relu6 leaky_relu elu celu selu gelu silu sigmoid tanh hardswish hardsigmoid mish softplus softsign abs neg "
    "exp hardtanh identity".split()
)
TURNS: Final = ("permute", "transpose", "movedim", "swapaxes")
CONVOLUTIONS: Final = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def sink_layouts(made: Running) -> bool:
    """`relu(permute(x))` is `permute(relu(x))`: what only moves entries goes behind functions of one number."""
    changed = False
    for node in list(made.graph.nodes):
        name = called(node) if node.op in ("call_function", "call_method") else ""
        if node.op == "call_module":
            name = ACTIVATIONS.get(type(made.held[str(node.target)]), "")
        if _sink_turned(made, node):
            changed = True
            continue
        sources = node.all_input_nodes
        count = 2 if name in BOTH else 1
        if name not in (POINTWISE | BOTH) or len(sources) != count or not _moved_alike(made, sources):
            continue
        inner = {s: s.all_input_nodes[0] for s in sources}
        first = sources[0]
        with made.graph.inserting_before(node):
            args, kwargs = (fx.map_arg(part, inner.__getitem__) for part in (node.args, dict(node.kwargs)))
            moved = made.graph.create_node(node.op, node.target, args, kwargs)  # type: ignore[arg-type]
            behind = made.graph.create_node(first.op, first.target, (moved, *first.args[1:]), dict(first.kwargs))
        made.shape[moved], made.shape[behind] = made.shape[inner[first]], made.shape[node]
        node.replace_all_uses_with(behind)
        made.graph.erase_node(node)
        changed = True
    return changed


def _moved_alike(made: Running, values: list[fx.Node]) -> bool:
    """Whether values are others of one shape whose entries were moved, in the same way."""
    if any(v.op not in ("call_function", "call_method") or called(v) not in LAYOUTS for v in values):
        return False
    if any(len(v.all_input_nodes) != 1 for v in values):
        return False
    ways = {(v.op, str(v.target), str(v.args[1:]), str(v.kwargs), made.shape.get(v.all_input_nodes[0])) for v in values}
    return len(ways) == 1


def _sink_turned(made: Running, node: fx.Node) -> bool:
    """A layer of one position, or a constant by axis, with its axes turned: the layout goes behind it."""
    turns = [n for n in node.all_input_nodes if not made.constant(n)]
    if len(turns) != 1 or made.constant(node) or node.op not in ("call_module", "call_function", "call_method"):
        return False
    (turn,) = turns
    order = _order(made, turn)
    if order is None or not made.shape.get(node):
        return False
    source = turn.all_input_nodes[0]
    found = _layer(made, node)
    with made.graph.inserting_before(node):
        if found is not None:
            axis = order[1 if found[0].ndim > 2 else len(order) - 1]
            made_layer = _along(found, axis, len(order))
            if made_layer is None:
                return False
            moved: fx.Node | None = made.layers(source, (made_layer,))
        elif node.op == "call_function" and called(node) in BOTH and len(node.args) == 2 and not node.kwargs:
            moved = _with_constant(made, node, turn, order)
        else:
            moved = None
        if moved is None:
            return False
        behind = made.graph.create_node(turn.op, turn.target, (moved, *turn.args[1:]), dict(turn.kwargs))
    shape = made.shape[node]
    made.shape[moved] = tuple(shape[order.index(axis)] for axis in range(len(order)))
    made.shape[behind] = shape
    node.replace_all_uses_with(behind)
    made.graph.erase_node(node)
    return True


def _order(made: Running, turn: fx.Node) -> tuple[int, ...] | None:
    """By axis, which axis of its operand a turned value has there; None where its entries are moved otherwise."""
    plain = turn.op in ("call_function", "call_method") and called(turn) in TURNS and len(turn.all_input_nodes) == 1
    source = turn.all_input_nodes[0] if plain else None
    if source is None or not made.shape.get(source):
        return None
    sizes = torch.empty(tuple(range(1, 1 + len(made.shape[source]))))
    turned = made.call(turn, {source: sizes})
    return tuple(n - 1 for n in turned.shape)


def _layer(made: Running, node: fx.Node) -> tuple[Tensor, Tensor | None] | None:
    """Weight and bias of a layer that looks at one position."""
    settings: tuple[Any, ...] = ()
    if node.op == "call_module":
        layer: Any = made.held[str(node.target)]
        if type(layer) not in (nn.Linear, *CONVOLUTIONS.values()) or len(node.args) != 1 or node.kwargs:
            return None
        weight, bias = layer.weight, layer.bias
        if type(layer) is not nn.Linear:
            settings = (*layer.stride, layer.groups, *(layer.padding if not isinstance(layer.padding, str) else ()))
            settings = tuple(s for s in settings if s not in (0, 1))
    else:
        if (
            called(node) not in ("linear", "conv1d", "conv2d", "conv3d")
            or len(node.args) > 3
            or set(node.kwargs) - {"bias"}
        ):
            return None
        given = [*node.args[1:], *node.kwargs.values()]
        tensors = [made.tensor(n) if isinstance(n, fx.Node) else n for n in given]
        weight, bias = (*tensors, None)[:2]
        if not isinstance(weight, Tensor) or not isinstance(bias, Tensor | None):
            return None
    return None if settings or weight[0, 0].numel() != 1 else (weight.detach(), None if bias is None else bias.detach())


def _along(layer: tuple[Tensor, Tensor | None], axis: int, rank: int) -> nn.Module | None:
    """The layer that does the same along another axis; None where torch has none."""
    weight, bias = layer[0].flatten(1), layer[1]
    rows, columns = weight.shape
    made: Any
    if axis == rank - 1:
        made = nn.Linear(columns, rows, bias=bias is not None, dtype=weight.dtype)
    elif axis == 1 and rank - 2 in CONVOLUTIONS:
        made = CONVOLUTIONS[rank - 2](columns, rows, 1, bias=bias is not None, dtype=weight.dtype)
    else:
        return None
    made.weight = nn.Parameter(weight.reshape(made.weight.shape).clone(), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return made.eval()  # type: ignore[no-any-return]


def _with_constant(made: Running, node: fx.Node, turn: fx.Node, order: tuple[int, ...]) -> fx.Node | None:
    """A value and a constant, whose axes are turned back."""
    swapped = node.args[1] is turn
    other: Any = node.args[0] if swapped else node.args[1]
    number = made.tensor(other) if isinstance(other, fx.Node) else None
    if number is None or made.shape[node] != made.shape[turn] or (swapped and called(node) == "sub"):
        return None
    whole = number.reshape(*(1,) * (len(order) - number.ndim), *number.shape)
    back = whole.permute(tuple(order.index(axis) for axis in range(len(order)))).contiguous()
    while back.ndim > 1 and len(back) == 1:
        back = back[0]
    return made.graph.call_function(node.target, (turn.all_input_nodes[0], made.hold(back)))  # type: ignore[arg-type]
