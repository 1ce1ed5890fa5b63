"""The walk, and once more with channels taken in their places where it finds little.

Behind a layer that was replaced nothing has coordinates. Whoever replaces a layer rarely moves the others; where they
were moved, what reads them tells where they belong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from canon.containment.backwards import in_owner_places
from canon.containment.walk import Walk
from canon.graph.widening import is_large
from canon.verify.portrait import Portrait
from canon.verify.side import movable
from canon.verify.traced import Traced

POOR: Final = 0.3
"""Share of a space's channels below which the order that was found says nothing."""


@dataclass(frozen=True, eq=False)
class Walked:
    """A walk, and the suspect that it went through."""

    suspect: Traced
    walk: Walk


def walk_through(suspect: Traced, portrait: Portrait, owner: Traced | None) -> Walked:
    """The owner's channels in a suspect, by whichever walk finds most of them distinctly."""
    walk = Walk(suspect.graph, suspect.tensors, portrait, owner=owner)
    walk.run()
    poor = _poor(walk)
    free = sum(movable(walk.graph.spaces[space]) for space in walk.found)
    if not poor or 2 * len(poor) < free:
        return Walked(suspect, walk)
    ways = [Walked(suspect, walk), Walked(suspect, _again(suspect, portrait, poor))]
    if owner is not None and not is_large(suspect.model) and 2 * len(_poor(ways[1].walk)) >= free:
        moved = in_owner_places(suspect, owner)
        again = None if moved is None else _again(moved, portrait, poor)
        channels = sum(item.leader.numel() for item in walk.found.values())
        if moved is not None and again is not None and again.told >= POOR * channels:
            ways.append(Walked(moved, again))
    return max(ways, key=lambda way: way.walk.told)


def _again(suspect: Traced, portrait: Portrait, in_place: frozenset[int]) -> Walk:
    walk = Walk(suspect.graph, suspect.tensors, portrait, in_place)
    walk.run()
    return walk


def _poor(walk: Walk) -> frozenset[int]:
    """Spaces in which hardly anything was found, as wide as the owner's."""
    spaces = walk.graph.spaces
    return frozenset(
        space
        for space, item in walk.found.items()
        if item.accepted.told < POOR * item.leader.numel()
        and movable(spaces[space])
        and spaces[space].width == item.leader.numel()
    )
