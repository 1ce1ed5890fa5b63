"""The normal form: a list of simplifications, each of which changes nothing, until none finds anything to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from canon.normal.idle import drop_identities, drop_repeated, spell_gates
from canon.normal.kernels import spell_diagonals, tidy_kernels
from canon.normal.nodes import Graph
from canon.normal.sums import add_parallel, drop_zeros, flatten_joins, flatten_sums, share_equal

Step = Callable[[Graph], list[str]]
"""Changes a graph, and says what it did."""

STRUCTURE: Final[tuple[Step, ...]] = (spell_gates, drop_repeated, flatten_sums, flatten_joins)
"""Steps that look at no weight: what an owner's program is read with."""

WEIGHTS: Final[tuple[Step, ...]] = (tidy_kernels, drop_identities, spell_diagonals, share_equal, drop_zeros)

MOST_ROUNDS: Final = 64
"""A program that is not done by then was made to keep us busy; what is left is compared as it stands."""


def simplify(graph: Graph, *, weights: bool = True, parallel: bool = True) -> list[str]:
    """Bring a program into its normal form; gives what was done, in words.

    Args:
        graph: It is changed.
        weights: Whether to look at numbers; False: at structure alone.
        parallel: Whether layers on one value that are added up become one layer; False: only where they cancel.
    """
    steps: tuple[Step, ...] = STRUCTURE
    if weights:
        steps = (*WEIGHTS, *STRUCTURE, partial(add_parallel, only_cancelling=not parallel))
    else:
        steps = (_owner_padding, drop_identities, *STRUCTURE)
    said: list[str] = []
    for _ in range(MOST_ROUNDS):
        before = len(said)
        changed = False
        for step in steps:
            graph.changed = False
            said += step(graph)
            if graph.changed:
                graph.settle()
                changed = True
        if not changed and len(said) == before:
            break
    return said


def _owner_padding(graph: Graph) -> list[str]:
    """Padding in front of layers, which tells how they fit; kernels stay as they are."""
    return tidy_kernels(graph, crop=False)
