"""The normal form: a list of simplifications, each of which changes nothing, until none finds anything to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Final

from canon.normal.branches import sources
from canon.normal.idle import drop_identities, drop_repeated, spell_gates
from canon.normal.kernels import spell_diagonals, tidy_kernels
from canon.normal.nodes import Graph
from canon.normal.patterns import called, sink_scales, spell_means
from canon.normal.positions import flatten_layers
from canon.normal.regrouping import (
    cancel_affine,
    join_outputs,
    join_terms,
    join_windows,
    parallel_outputs,
    parallel_terms,
    pull_from_joins,
    pull_norms,
    spell_pools,
    split_sums,
    take_up_strides,
)
from canon.normal.sums import add_parallel, drop_zeros, flatten_joins, flatten_sums, share_equal

ONE_POSITION: Final = "layers of one position"
"""What both programs keep where they have as many linear layers, and neither where they have not."""

Simplification = Callable[[Graph], list[str]]
"""Changes a graph, and says what it did."""

STRUCTURE: Final[tuple[Simplification, ...]] = (
    spell_means,
    sink_scales,
    spell_gates,
    drop_repeated,
    flatten_sums,
    flatten_joins,
    pull_from_joins,
)
"""Steps that look at no weight: what an owner's program is read with."""

WEIGHTS: Final[tuple[Simplification, ...]] = (
    join_windows, take_up_strides, tidy_kernels, drop_identities, cancel_affine, split_sums, spell_diagonals,
    share_equal, drop_zeros,
)  # fmt: skip

TELLING: Final[Mapping[str, Simplification]] = {
    "parallel layers": add_parallel, "joined layers": join_outputs, "joined terms": join_terms, "pools": spell_pools,
    "norms of parts": pull_norms, ONE_POSITION: flatten_layers,
}  # fmt: skip
"""Steps that are left out where the owner's own program has what they do away with, or nothing that they make."""

MOST_ROUNDS: Final = 64
"""A program that is not done by then was made to keep us busy; what is left is compared as it stands."""


def simplify(graph: Graph, *, weights: bool = True, kept: Set[str] = frozenset()) -> list[str]:
    """Bring a program into its normal form; gives what was done, in words.

    Args:
        graph: It is changed.
        weights: Whether to look at numbers; False: at structure alone.
        kept: What the owner's own program has and a suspect therefore keeps, of `TELLING`; of these an owner's program
            is asked for `ONE_POSITION` alone.
    """
    steps: tuple[Simplification, ...] = (_owner_padding, drop_identities, *STRUCTURE)
    if ONE_POSITION not in kept:
        steps = (*steps, flatten_layers)
    if weights:
        telling = [step for name, step in TELLING.items() if name not in kept]
        if "parallel layers" in kept:
            telling.append(partial(add_parallel, only_cancelling=True))
        steps = (*WEIGHTS, *STRUCTURE, *telling)
    said = list(graph.said)
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


def telling(owner: Graph) -> set[str]:
    """What of `TELLING` an owner's program has itself."""
    found: set[str] = set()
    absent = {"pools", "norms of parts"}
    for node in owner.order:
        if node.kind == "sum":
            read = [source for term in node.inputs for source, _ in sources(owner, term)]
            found |= {"parallel layers"} if len({*read, *node.inputs}) < len(read) + len(node.inputs) else set()
            found |= {"joined terms"} if parallel_terms(owner, node) else set()
        elif node.kind == "cat" and len(node.inputs) > 1 and parallel_outputs(owner, node):
            found.add("joined layers")
        elif called(node, "avg_pool", "mean of positions"):
            absent.discard("pools")
        elif node.kind == "affine" and node.inputs[0].kind == "cat":
            absent.discard("norms of parts")
    return found | absent


def _owner_padding(graph: Graph) -> list[str]:
    """Padding in front of layers, which tells how they fit; kernels stay as they are."""
    return tidy_kernels(graph, crop=False)
