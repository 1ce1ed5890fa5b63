"""Where a recorded forward pass has attention: one operation, or two products around a softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

ATEN: Final = torch.ops.aten

_FUSED: Final = (ATEN.scaled_dot_product_attention.default,)
_SOFTMAX: Final = (ATEN.softmax.int, ATEN._softmax.default)
_PRODUCTS: Final[dict[Any, tuple[int, int]]] = {
    ATEN.matmul.default: (0, 1),
    ATEN.bmm.default: (0, 1),
    ATEN.baddbmm.default: (1, 2),
}
_SCORES_STAY: Final = frozenset(
    {"add", "add_", "sub", "mul", "mul_", "div", "div_", "where", "masked_fill", "masked_fill_", "to", "tanh", "clamp",
     "_to_copy", "dropout", "view", "reshape", "expand"}
)  # fmt: skip
"""What may stand between products and softmax, or behind it."""


@dataclass(frozen=True)
class Core:
    """Attention itself."""

    operands: tuple[fx.Node, fx.Node, fx.Node]
    """Queries, keys and values."""

    readers: tuple[fx.Node, ...]
    result: fx.Node
    turned: bool
    """Whether keys stand with their entries before the positions."""

    alike: bool
    """Whether nothing else is done head by head."""


def core_of(node: fx.Node) -> Core | None:
    """The attention that a node completes; None: it does not."""
    if node.target in _FUSED:
        query, key, value, *rest = node.args
        mask = rest[0] if rest else node.kwargs.get("attn_mask")
        return Core((query, key, value), (node,), node, False, _for_all_heads(mask))  # type: ignore[arg-type]
    if node.target not in _SOFTMAX:
        return None
    before, after = _scores(node.args[0], 12), _behind(node)
    if before is None or after is None:
        return None
    first, second = _PRODUCTS[before[0].target]
    result, alone = after
    operands: Any = (before[0].args[first], before[0].args[second], result.args[_PRODUCTS[result.target][1]])
    return Core(operands, (before[0], result), result, True, before[1] and alone)


def _for_all_heads(operand: Any) -> bool:
    shape: tuple[int, ...] = operand.meta["val"].shape if isinstance(operand, fx.Node) else ()
    return len(shape) < 3 or shape[-3] == 1


def _scores(node: Any, steps: int) -> tuple[fx.Node, bool] | None:
    """The product that scores come from, and whether nothing was done to them head by head."""
    if not isinstance(node, fx.Node) or not steps or node.op != "call_function" or len(node.users) > 1:
        return None
    if node.target in _PRODUCTS:
        return node, node.target is not ATEN.baddbmm.default or _for_all_heads(node.args[0])
    if named(node) not in _SCORES_STAY:
        return None
    sources = node.all_input_nodes
    for source in sources:
        found = _scores(source, steps - 1)
        if found is not None:
            return found[0], found[1] and all(_for_all_heads(other) for other in sources if other is not source)
    return None


def _behind(node: fx.Node) -> tuple[fx.Node, bool] | None:
    """The product of shares and values, and whether nothing else reads the shares."""
    alone = True
    for _ in range(6):
        users = [user for user in node.users if not unread(user)]
        used = [u for u in users if u.target in _PRODUCTS or (named(u) in _SCORES_STAY and len(u.all_input_nodes) == 1)]
        if not used:
            return None
        alone = alone and len(users) == 1
        source, node = node, next((user for user in used if user.target in _PRODUCTS), used[0])
        if node.target in _PRODUCTS:
            return (node, alone) if node.args[_PRODUCTS[node.target][0]] is source else None
    return None


def unread(node: fx.Node) -> bool:
    """Whether a value is only kept for later calls."""
    harmless = node.op == "call_function" and (not named(node).endswith("_") or node.target is ATEN.detach_.default)
    return harmless and all(map(unread, node.users))


def named(node: fx.Node) -> str:
    """What torch calls the operation of a node."""
    return str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))
