"""A suspect's program with layers where it has norms and linear stretches that are written in other ways."""

from __future__ import annotations

from math import prod
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from canon.graph.modules import ACTIVATIONS
from canon.normal.lower import shapes_of
from canon.normal.normalised import normalise
from canon.normal.recognised import Form, recognise
from canon.normal.regions import WEIGHTED, Region, Regions
from canon.normal.running import Running, called

MOST_ROUNDS: Final = 24
"""How often all stretches are looked at."""

MOST_OPERATIONS: Final = 4_000
"""Longer programs are compared as they are written."""

MOST_ENTRIES: Final = 1 << 28
"""Numbers of all values together: the program is run in float64."""

MOST_ASKED: Final = 400
"""Stretches that are asked what they do, and turn out to be nothing that is known."""

SHARED: Final = 8
"""Values that one stretch may read."""


FLAT: Final = ("flatten", (1,))
LAYOUTS: Final = ("permute", "transpose", "movedim", "swapaxes", "flatten", "unflatten", "reshape", "view")
BOTH: Final = frozenset({"add", "mul", "sub", "iadd"})
POINTWISE: Final = frozenset(
    "relu relu6 leaky_relu elu celu selu gelu silu sigmoid tanh hardswish hardsigmoid mish softplus softsign abs neg "
    "exp hardtanh identity".split()
)


def respelled(
    model: nn.Module, graph: fx.Graph, example: Any, *, linear: bool = True
) -> tuple[fx.GraphModule, list[str]] | None:
    """A model that computes the same, whose norms and linear stretches are layers; None where none was found.

    Args:
        model: In evaluation mode; it is not changed.
        graph: Its program.
        example: An input tensor or tuple of inputs.
        linear: Whether to look for linear stretches, and not for norms alone.
    """
    entries = [prod(shape) for shape in shapes_of(model, graph, example).values() if isinstance(shape, tuple)]
    if len(graph.nodes) > MOST_OPERATIONS or not 0 < sum(entries) <= MOST_ENTRIES:
        return None
    try:
        made = Running(model, graph, example if isinstance(example, tuple) else (example,))
    except Exception:  # a program that does not run on its example
        return None
    kind = next((t.dtype for t in model.parameters()), torch.float32)
    refused: set[tuple[str, ...]] = set()
    for _ in range(MOST_ROUNDS):
        changed = normalise(made, called, kind)
        regions = Regions(made)
        for ways in regions.found() if linear else ():
            for region in ways:
                names = tuple(n.name for n in region.nodes if not made.constant(n))
                if names in refused or len(refused) >= MOST_ASKED:
                    continue
                terms = _terms(made, region, kind)
                if terms is None or _cost(terms) >= regions.cost(region):
                    refused.add(names)
                    continue
                made.write([(source, form.steps) for source, form in terms], region.nodes[-1])
                made.said.append(f"'{names[0]}' to '{names[-1]}' are linear: written as layers")
                changed = True
                break
        if not (changed or (linear and sink_layouts(made))):
            break
        made.run()
    if len(refused) >= MOST_ASKED:
        made.said.append(f"the budget for linear stretches is spent: {MOST_ASKED} were asked in vain")
    return (made.module(), made.said) if made.said else None


def _cost(terms: list[tuple[fx.Node, Form]]) -> int:
    total = len(terms) - 1
    for _, form in terms:
        steps = [s for s in form.steps if not isinstance(s, tuple) or (s[0] not in ("mean", "mul") and s != FLAT)]
        heavy = [at for at, step in enumerate(steps) if isinstance(step, WEIGHTED)]
        total += len(steps) + (heavy[0] if heavy else 0)
        total += sum(isinstance(step, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for step in steps)
    return total


def _terms(made: Running, region: Region, kind: torch.dtype) -> list[tuple[fx.Node, Form]] | None:
    """What a stretch does to each value that it reads; None where that is not known."""
    known = all(made.shape.get(n) for n in (*region.inputs, region.nodes[-1]))
    if not 0 < len(region.inputs) <= SHARED or not known:
        return None
    given = {n: torch.zeros(made.shape[n], dtype=torch.float64) for n in region.inputs}
    try:
        nothing = made.value(region.nodes, given).detach()
        found = []
        for place, source in enumerate(region.inputs):

            def ask(x: Tensor, source: fx.Node = source) -> Tensor:
                return made.value(region.nodes, {**given, source: x}) - nothing

            form = recognise(ask, tuple(made.shape[source]), nothing if place == 0 else torch.zeros_like(nothing), kind)
            if form is None:
                return None
            found.append((source, form))
    except Exception:  # operations that cannot be asked in this way
        return None
    return found


def sink_layouts(made: Running) -> bool:
    """`relu(permute(x))` is `permute(relu(x))`: what only moves entries goes behind functions of one number."""
    changed = False
    for node in list(made.graph.nodes):
        name = called(node) if node.op in ("call_function", "call_method") else ""
        if node.op == "call_module":
            name = ACTIVATIONS.get(type(made.held[str(node.target)]), "")
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
