"""The walk, and once more with channels taken in their places where it finds little.

Behind a layer that was replaced nothing has coordinates. Whoever replaces a layer rarely moves the others.
"""

from __future__ import annotations

from typing import Final

from canon.containment.walk import Found, Walk
from canon.verify.portrait import Portrait
from canon.verify.side import movable
from canon.verify.traced import Traced

POOR: Final = 0.3
"""Share of a space's channels below which the order that was found says nothing."""


def walk_through(suspect: Traced, portrait: Portrait) -> tuple[Walk, dict[int, Found]]:
    """The owner's channels in a suspect, by whichever walk finds more of them distinctly."""
    graph = suspect.graph
    walk = Walk(graph, suspect.tensors, portrait)
    found = walk.run()
    poor = frozenset(
        space
        for space, item in found.items()
        if item.accepted.told < POOR * item.leader.numel()
        and movable(graph.spaces[space])
        and graph.spaces[space].width == item.leader.numel()
    )
    if 2 * len(poor) < len(found):
        return walk, found
    again = Walk(graph, suspect.tensors, portrait, poor)
    other = again.run()
    return (again, other) if _told(other) > _told(found) else (walk, found)


def _told(found: dict[int, Found]) -> int:
    return sum(item.accepted.told for item in found.values())
