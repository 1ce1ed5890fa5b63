"""A suspect's program with layers where it has norms and linear stretches that are written in other ways."""

from __future__ import annotations

from math import prod
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from canon.normal.layouts import sink_layouts
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


def respelled(
    model: nn.Module, graph: fx.Graph, example: Any, *, layouts: bool = True, linear: bool = True
) -> tuple[fx.GraphModule, list[str]] | None:
    """A model that computes the same, whose norms and linear stretches are layers; None where none was found.

    Args:
        model: In evaluation mode; it is not changed.
        graph: Its program.
        example: An input tensor or tuple of inputs.
        layouts: Whether to put layouts behind what they go behind, and not to look for norms alone.
        linear: Whether to look for linear stretches as well.
    """
    made = running(model, graph, example)
    if made is None:
        return None
    kind = next((t.dtype for t in model.parameters()), torch.float32)
    refused: set[tuple[str, ...]] = set()
    for _ in range(MOST_ROUNDS):
        changed = normalise(made, called, kind)
        regions = Regions(made)
        for ways in regions.found() if linear else ():
            for region in ways:
                names = tuple(n.name for n in region.nodes if not made.constant(n))
                done = all(n in made.written or made.constant(n) for n in region.nodes)
                if done or names in refused or len(refused) >= MOST_ASKED:
                    continue
                terms = _terms(made, region, kind)
                if terms is None or _cost(terms) >= regions.cost(region):
                    refused.add(names)
                    continue
                made.write([(source, form.steps) for source, form in terms], region.nodes[-1])
                made.said.append(f"'{names[0]}' to '{names[-1]}' are linear: written as layers")
                changed = True
                break
        if not (changed or (layouts and sink_layouts(made))):
            break
        made.run()
    if len(refused) >= MOST_ASKED:
        made.said.append(f"the budget for linear stretches is spent: {MOST_ASKED} were asked in vain")
    return (made.module(), made.said) if made.said or made.written else None


def running(model: nn.Module, graph: fx.Graph, example: Any) -> Running | None:
    """A program that can be run and rewritten; None where it is too large for that, or does not run on its example."""
    entries = [prod(shape) for shape in shapes_of(model, graph, example).values() if isinstance(shape, tuple)]
    if len(graph.nodes) > MOST_OPERATIONS or not 0 < sum(entries) <= MOST_ENTRIES:
        return None
    try:
        return Running(model, graph, example if isinstance(example, tuple) else (example,))
    except Exception:
        return None


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
