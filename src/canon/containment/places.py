"""The walk, and once more with channels given places where it finds little.

Behind a layer that was replaced nothing has coordinates. Whoever replaces a layer rarely moves the others; where they
were moved, what reads them tells where they belong.
"""

from __future__ import annotations

from typing import Final

from canon.containment.backwards import Places, places_by_columns
from canon.containment.walk import Walk
from canon.graph.widening import is_large
from canon.verify.portrait import Portrait
from canon.verify.side import movable
from canon.verify.traced import Traced

POOR: Final = 0.2
"""Share of the spaces in which hardly anything is found, from which on it is tried again."""


def walk_through(suspect: Traced, portrait: Portrait, owner: Traced | None) -> Walk:
    """The owner's channels in a suspect, by whichever walk finds most of them distinctly."""
    best, spaces = Walk(suspect.graph, suspect.tensors, portrait, owner=owner), suspect.graph.spaces
    best.run()
    if not _finds_little(best):
        return best
    standing = {
        space: Places.as_they_stand(spaces[space].width)
        for space, item in best.found.items()
        if movable(spaces[space]) and spaces[space].width == item.leader.numel()
    }
    best = _better(best, suspect, portrait, standing)
    if owner is not None and not is_large(suspect.model) and _finds_little(best):
        best = _better(best, suspect, portrait, places_by_columns(suspect, owner))
    return best


def _better(best: Walk, suspect: Traced, portrait: Portrait, places: dict[int, Places]) -> Walk:
    """A walk with such places, if it finds more."""
    if not places:
        return best
    walk = Walk(suspect.graph, suspect.tensors, portrait, places)
    walk.run()
    return max(best, walk, key=lambda way: way.told)


def _finds_little(walk: Walk) -> bool:
    free = [space for space in walk.found if movable(walk.graph.spaces[space])]
    return sum(walk.poor(space) for space in free) > POOR * len(free)
