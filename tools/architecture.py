"""The picture of the packages, drawn from the imports in the code.

`python -m tools.architecture docs/pictures/architecture.svg` writes it; a test compares the file with the code. A line
leads from a package to one that it imports. What follows from other lines (a package may import what its imports
import) is left out, so that the picture shows the order and not the traffic.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

BASE = "errors, files, …"
"""What everything rests on: the errors and the private modules, as one box."""

WIDTH, HEIGHT, ROW, GAP = 118, 34, 74, 26

Imports = Mapping[str, frozenset[str]]


def imports_of(package: str = "canon") -> Imports:
    """Which parts of the package import which others; what serves type checkers only does not count."""
    import grimp

    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            one, other = _part(module), _part(imported)
            if one is not None and other is not None and one != other:
                found.setdefault(one, set()).add(other)
                found.setdefault(other, set())
    return {name: frozenset(others) for name, others in found.items()}


def _part(module: str) -> str | None:
    names = module.split(".")
    if len(names) == 1:
        return None
    return BASE if names[1].startswith("_") or names[1] == "errors" else names[1]


def reduced(imports: Imports) -> Imports:
    """Only what does not follow from other imports.

    >>> reduced({"c": frozenset("ab"), "b": frozenset("a"), "a": frozenset()})["c"]
    frozenset({'b'})
    """
    reached = {name: _reached(imports, name) for name in imports}
    return {
        name: frozenset(one for one in others if not any(one in reached[other] for other in others - {one}))
        for name, others in imports.items()
    }


def _reached(imports: Imports, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports[name]
    return seen


def depths(imports: Imports) -> dict[str, int]:
    """How many packages stand below each, on the longest way down.

    >>> depths({"c": frozenset("ab"), "b": frozenset("a"), "a": frozenset()})
    {'c': 2, 'b': 1, 'a': 0}
    """

    def depth(name: str) -> int:
        return 1 + max((depth(other) for other in imports[name]), default=-1)

    return {name: depth(name) for name in imports}


@dataclass(frozen=True)
class Place:
    """Where a package, or a line that passes its row, stands: a row from the bottom, and a position along it."""

    row: int
    name: str
    via: str | None = None
    """For a line that passes by: where it goes."""


def arrange(imports: Imports) -> dict[Place, float]:
    """Positions in the rows such that few lines cross: every one at the mean of its neighbours, again and again."""
    rows = depths(imports)
    links: dict[Place, list[Place]] = {Place(rows[name], name): [] for name in sorted(imports)}
    for name in sorted(imports):
        for other in sorted(imports[name]):
            way = _way(name, other, rows)
            for one, next_one in pairwise(way):
                links.setdefault(one, []).append(next_one)
                links.setdefault(next_one, []).append(one)
    found: dict[Place, float] = {}
    for row in range(max(rows.values()) + 1):
        found |= _spread(place for place in links if place.row == row)
    for sweep in range(24):
        step = -1 if sweep % 2 else 1
        for row in sorted({place.row for place in links}, reverse=step < 0):
            mean = {
                place: _mean([found[one] for one in links[place] if one.row == row - step], found[place])
                for place in links
                if place.row == row
            }
            found |= _spread(sorted(mean, key=lambda place: (mean[place], place.name)), mean)
    return found


def _way(name: str, other: str, rows: Mapping[str, int]) -> list[Place]:
    between = [Place(row, name, via=other) for row in range(rows[name] - 1, rows[other], -1)]
    return [Place(rows[name], name), *between, Place(rows[other], other)]


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _spread(places: Iterable[Place], wanted: Mapping[Place, float] | None = None) -> dict[Place, float]:
    """Centres in the given order, as near to the wanted ones as the boxes allow; without wishes, around zero."""
    found: dict[Place, float] = {}
    end = float("-inf")
    for place in places:
        half = (WIDTH if place.via is None else 12) / 2
        found[place] = max(end + GAP + half, 0.0 if wanted is None else wanted[place])
        end = found[place] + half
    shift = _mean([centre - (0.0 if wanted is None else wanted[place]) for place, centre in found.items()], 0.0)
    return {place: centre - shift for place, centre in found.items()}


def draw(imports: Imports) -> str:
    """The picture as SVG; the same imports give the same text."""
    shown = reduced(imports)
    rows, centres = depths(shown), arrange(shown)
    left, top = min(centres.values()) - WIDTH / 2 - 4, max(rows.values())
    spots = {place: (round(centre - left, 1), (top - place.row) * ROW + 4) for place, centre in centres.items()}
    width = max(x for x, _ in spots.values()) + WIDTH / 2 + 4
    lines = [_line(_way(name, other, rows), spots) for name in sorted(shown) for other in sorted(shown[name])]
    boxes = [
        _box(place.name, *spots[place]) for place in sorted(spots, key=lambda place: spots[place]) if not place.via
    ]
    content = "\n".join(f"  {part}" for part in (*lines, *boxes))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {top * ROW + HEIGHT + 8}" role="img" '
        f'aria-label="The packages of Canon, each above those that it imports">\n{STYLE}{content}\n</svg>\n'
    )


def _line(way: list[Place], spots: Mapping[Place, tuple[float, int]]) -> str:
    x, y = spots[way[0]]
    path = f"M{x:g} {y + HEIGHT}"
    for one, other in pairwise(way):
        (x, y), (next_x, next_y) = spots[one], spots[other]
        middle = (y + HEIGHT + next_y) / 2
        path += f"C{x:g} {middle:g} {next_x:g} {middle:g} {next_x:g} {next_y}"
        if other.via is not None:
            path += f"v{HEIGHT}"
    return f'<path class="canon-import" d="{path}"/>'


def _box(name: str, x: float, y: int) -> str:
    return (
        f'<rect class="canon-package" x="{x - WIDTH / 2:g}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text class="canon-name" x="{x:g}" y="{y + 22}">{escape(name)}</text>'
    )


STYLE = """  <style>
    .canon-package { fill: #2f78c4; fill-opacity: .12; stroke: #2f78c4 }
    .canon-name { fill: var(--md-default-fg-color, #333); font: 14px sans-serif; text-anchor: middle }
    .canon-import { fill: none; stroke: var(--md-default-fg-color, #333); stroke-opacity: .45; stroke-width: 1.4 }
  </style>
"""


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description="Draw the packages and their imports.")
    parser.add_argument("out", type=Path)
    parser.parse_args().out.write_text(draw(imports_of()), encoding="utf-8")


if __name__ == "__main__":
    main()
