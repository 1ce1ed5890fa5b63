"""Norms put back behind layers that took theirs up, as norms that do nothing.

Where a reference has norms and a suspect's were folded away, the two can be compared space by space once the suspect
has norms in the same places. What they do is the suspect's alone: they add the bias that the layer held.
"""

from __future__ import annotations

import keyword
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx, nn

from canon.errors import UnsupportedModelError
from canon.rewrite.fold import LAYERS, FoldableNorm
from canon.rewrite.surgery import replace_tensors


def restore_norms(model: nn.Module, norms: Iterable[FoldableNorm]) -> nn.Module:
    """Put a norm that does nothing behind layers that have taken up theirs; the layer's bias becomes the norm's.

    The result is a graph module with the model's layers under their names. The function stays.

    Args:
        model: In evaluation mode. It is not changed.
        norms: Which norm goes behind which layer.

    Raises:
        UnsupportedModelError: torch.fx cannot trace the model, or does not find a layer exactly once.
    """
    root = replace_tensors(model, {})
    try:
        graph = fx.Tracer().trace(root)
    except Exception as error:
        raise UnsupportedModelError(
            f"norms cannot be put back: torch.fx cannot trace the forward pass ({type(error).__name__}: {error})",
            where=type(model).__name__,
        ) from error
    nodes: dict[str, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == "call_module":
            nodes[str(node.target)].append(node)
    fresh: dict[str, nn.Module] = {}
    norms = tuple(norms)
    _check_names([*nodes, *(str(n.target) for n in graph.nodes if n.op == "get_attr"), *(pair.norm for pair in norms)])
    for pair in norms:
        if len(nodes[pair.layer]) != 1:
            raise UnsupportedModelError(
                "a norm cannot be put back behind a layer that is not called once", where=pair.layer
            )
        if not isinstance(_found(root, pair.norm), nn.Identity | None):
            raise UnsupportedModelError("another layer stands where a norm belongs", where=pair.norm)
        fresh[pair.norm] = _norm_behind(root.get_submodule(pair.layer), pair)
        node = nodes[pair.layer][0]
        if not any(user.op == "call_module" and user.target == pair.norm for user in node.users):
            _insert_behind(graph, node, pair.norm)
    for name, norm in fresh.items():
        _place(root, name, norm)
    return _with_all_layers(fx.GraphModule(root, graph), root).eval()


def _check_names(names: Iterable[str]) -> None:
    """A graph module writes a program that holds these names, and they may come from anybody's file."""
    for name in names:
        parts = name.split(".")
        if any(keyword.iskeyword(p) or not (p.isascii() and p.replace("_", "a").isalnum()) for p in parts):
            raise UnsupportedModelError(
                "the name holds a word of Python, or characters other than letters, digits, underscores and dots",
                where=name[:80],
            )


def _found(root: nn.Module, name: str) -> nn.Module | None:
    try:
        return root.get_submodule(name)
    except AttributeError:
        return None


def _norm_behind(module: nn.Module, pair: FoldableNorm) -> nn.Module:
    """A norm `x + bias`, which takes the bias from the layer before it."""
    layer: Any = module
    kind = LAYERS.get(type(layer))
    if kind is None:
        raise UnsupportedModelError(f"a norm cannot be put back behind a {type(layer).__name__}", where=pair.layer)
    width = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    norm: Any = kind(width).to(layer.weight)
    with torch.no_grad():
        norm.weight.fill_((1 + norm.eps) ** 0.5)
        if layer.bias is not None:
            norm.bias.copy_(layer.bias)
    layer.bias = nn.Parameter(torch.zeros_like(norm.bias)) if pair.bias else None
    return norm.eval()  # type: ignore[no-any-return]


def _insert_behind(graph: fx.Graph, node: fx.Node, name: str) -> None:
    with graph.inserting_after(node):
        norm = graph.call_module(name, (node,))
    node.replace_all_uses_with(norm, delete_user_cb=lambda user: user is not norm)


def _place(root: nn.Module, name: str, module: nn.Module) -> None:
    """Register a module under a name, with empty modules on the way where there are none."""
    *path, last = name.split(".")
    parent = root
    for part in path:
        if not isinstance(getattr(parent, part, None), nn.Module):
            parent.add_module(part, nn.Module())
        parent = parent.get_submodule(part)
    parent.add_module(last, module)


def _with_all_layers(result: fx.GraphModule, root: nn.Module) -> fx.GraphModule:
    """A graph module holds what its graph calls; layers beside it (auxiliary heads) belong to the model as well."""
    for name, module in root.named_modules():
        weighted = not list(module.children()) and list(module.parameters(recurse=False))
        if name and weighted and _found(result, name) is None:
            result.add_submodule(name, module)
    return result
