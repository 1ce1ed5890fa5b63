"""A thief who writes the same network as another program: every rewriting keeps the function."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Final

from torch import fx, nn

from canon_benchmarks.thief import additions, layers, order, spellings

Rewriting = Callable[[fx.GraphModule, random.Random], bool]
"""Changes a graph module in place; False where it finds no place to do so."""

REWRITINGS: Final[dict[str, Rewriting]] = {
    function.__name__: function
    for function in (*order.REWRITINGS, *additions.REWRITINGS, *layers.REWRITINGS, *spellings.REWRITINGS)
}


def rewritten(model: nn.Module, names: Sequence[str], seed: int = 0) -> fx.GraphModule:
    """A copy of a model with these rewritings, one after the other; those that find no place are left out.

    `meta["done"]` names those that were done.
    """
    graph_module = fx.symbolic_trace(copy.deepcopy(model)).eval()
    chance = random.Random(seed)
    done = []
    for name in names:
        if REWRITINGS[name](graph_module, chance):
            done.append(name)
        graph_module.graph.lint()
        graph_module.recompile()
    graph_module.meta["done"] = done
    return graph_module.eval()
