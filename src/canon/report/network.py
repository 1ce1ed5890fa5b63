"""The network as it is drawn: a list of layers with their channels, and arcs for what reads what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from math import sqrt
from typing import Any, Final

FEW: Final = 40
"""Networks with more layers are drawn stage by stage."""

STAGES: Final = 5
"""Least number of stages that layers are gathered into."""

GUTTER: Final = 64
"""Width of the arcs, in the units of their drawing."""

PITCH: Final = 10
"""Height of a row in these units; the page stretches them to its own rows."""

GROUPS: Final = {
    "silent": ("zero-in", "zero-out", "constant"),
    "cancelling": ("clique",),
    "copied": ("duplicate",),
}
"""What recovery finds, in three kinds that a layman can tell apart."""


@dataclass(frozen=True)
class Part:
    """A stretch of a bar."""

    kind: str
    """left, silent, cancelling or copied; of an owner's space: owned, copied, surplus or missing."""

    channels: int
    start: float
    """In percent of the whole drawing's width."""

    length: float


@dataclass(frozen=True)
class Row:
    """A layer, or a stage of several."""

    name: str
    label: str
    """The name without what all names of a stage begin with."""

    layers: int
    given: int
    """Output channels of the suspect."""

    recovered: int
    reference: int | None
    """Output channels of the owner's model, where it is known."""

    counts: Mapping[str, int]
    """Channels that went, by kind of `GROUPS`."""

    parts: tuple[Part, ...] = ()
    inside: Drawing | None = None
    """The layers of a stage."""


@dataclass(frozen=True)
class Drawing:
    """Rows from the input to the output, and arcs between them."""

    rows: tuple[Row, ...]
    arcs: tuple[str, ...]
    """Paths from a layer to one that reads it."""

    joins: tuple[str, ...]
    """Paths between layers whose outputs are added up, or go through each other channel by channel."""

    @property
    def dense(self) -> bool:
        """Whether the arcs are so many that they must be drawn thinly."""
        return len(self.arcs) > 3 * len(self.rows)

    @property
    def height(self) -> int:
        """In the units of the arcs."""
        return PITCH * len(self.rows)


def draw(network: Sequence[Mapping[str, Any]], recovery: Mapping[str, Any] | None) -> Drawing:
    """The drawing of a network, from the evidence's `network` and `recovery`."""
    spaces = {} if recovery is None else {space["name"]: space for space in recovery["spaces"]}
    rows = [_row(layer, spaces) for layer in network]
    reads, joins = edges(network)
    if len(rows) <= FEW:
        return _drawing(rows, reads, joins)
    stage, members = {}, [[*found] for _, found in groupby(range(len(rows)), key=_stages([row.name for row in rows]))]
    for index, member in enumerate(members):
        stage.update(dict.fromkeys(member, index))
    gathered = [_gather(rows, member, reads, joins) for member in members]
    outer = {(stage[a], stage[b]) for a, b in (*reads, *joins) if stage[a] != stage[b]}
    return _drawing(gathered, sorted(outer), [])


def edges(network: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs of layers, by index: which reads which, and which are added up.

    Several layers may write to one space. A reader is tied to the last one before it, and that one to the one before:
    a residual stream becomes a chain with its blocks beside it.
    """
    latest: dict[str, int] = {}
    reads, joins = [], []
    for index, layer in enumerate(network):
        sources = sorted({latest[space] for space in layer["reads"] if space in latest})
        reads += [(source, index) for source in sources]
        for space in layer["makes"]:
            if space in latest and latest[space] not in sources:
                joins.append((latest[space], index))
            latest[space] = index
    return reads, joins


def _row(layer: Mapping[str, Any], spaces: Mapping[str, Mapping[str, Any]]) -> Row:
    made = [spaces[name] for name in layer["makes"] if name in spaces]
    total = sum(space["before"] for space in made)
    # An axis that a flatten multiplied holds every channel several times.
    times = layer["suspect"] // total if total else 1
    counts = {
        group: times * sum(space["counts"].get(kind, 0) for space in made for kind in kinds)
        for group, kinds in GROUPS.items()
    }
    return Row(layer["name"], layer["name"], 1, layer["suspect"], layer["recovered"], layer.get("reference"), counts)


def _gather(rows: Sequence[Row], member: Sequence[int], reads: Iterable[Any], joins: Iterable[Any]) -> Row:
    chosen = [rows[index] for index in member]
    if len(chosen) == 1:
        return chosen[0]
    first, inside = member[0], set(member)
    known = [row.reference for row in chosen if row.reference is not None]
    within = [[(a - first, b - first) for a, b in pairs if a in inside and b in inside] for pairs in (reads, joins)]
    stage = _common([row.name for row in chosen])
    chosen = [replace(row, label=row.name.removeprefix(f"{stage}.")) for row in chosen]
    return Row(
        name=stage,
        label=stage,
        layers=len(chosen),
        given=sum(row.given for row in chosen),
        recovered=sum(row.recovered for row in chosen),
        reference=sum(known) if len(known) == len(chosen) else None,
        counts={group: sum(row.counts[group] for row in chosen) for group in GROUPS},
        inside=_drawing(chosen, within[0], within[1]),
    )


def _drawing(rows: Sequence[Row], reads: Iterable[tuple[int, int]], joins: Iterable[tuple[int, int]]) -> Drawing:
    widest = max((row.given for row in rows), default=1)
    whole = tuple(_with_parts(row, widest) for row in rows)
    reads, joins = tuple(reads), tuple(joins)
    longest = max((end - start for start, end in (*reads, *joins)), default=1)
    return Drawing(
        whole,
        tuple(_arc(start, end, longest) for start, end in reads),
        tuple(_arc(start, end, longest) for start, end in joins),
    )


def _with_parts(row: Row, widest: int) -> Row:
    """The bar: its length grows with the square root of the width, so that narrow layers can be seen too."""
    gone = sum(row.counts.values())
    return replace(row, parts=stretches({"left": max(0, row.given - gone), **row.counts}, widest))


def stretches(pieces: Mapping[str, int], widest: int) -> tuple[Part, ...]:
    """Parts side by side, each in proportion to its channels."""
    whole = max(1, sum(pieces.values()))
    scale = 100 * sqrt(whole / max(widest, whole)) / whole
    parts, start = [], 0.0
    for kind, channels in pieces.items():
        if channels:
            parts.append(Part(kind, channels, round(start, 3), round(channels * scale, 3)))
            start += channels * scale
    return tuple(parts)


def _arc(start: int, end: int, longest: int) -> str:
    """A path along the left of the rows; the longer, the further out."""
    top, bottom = PITCH * (start + 0.5), PITCH * (end + 0.5)
    if end - start == 1:
        return f"M{GUTTER} {top:g}V{bottom:g}"
    room = GUTTER - 8
    out = room - min(15.0, room / sqrt(longest - 1)) * sqrt(end - start - 1)
    bend = min(PITCH, (bottom - top) / 2)
    down, back = (
        f"Q{out:g} {top:g} {out:g} {top + bend:g}V{bottom - bend:g}",
        f"Q{out:g} {bottom:g} {GUTTER} {bottom:g}",
    )
    return f"M{GUTTER} {top:g}{down}{back}"


def _stages(names: Sequence[str]) -> Any:
    """By index, the stage of a layer: the first words of its name, as few as give enough stages."""
    words = [name.split(".") for name in names]
    deepest = max(map(len, words))
    for depth in range(1, deepest + 1):
        keys = [tuple(word[:depth]) for word in words]
        if len([*groupby(keys)]) >= STAGES:
            break
    return keys.__getitem__


def _common(names: Sequence[str]) -> str:
    """The words that all names begin with."""
    words = [name.split(".") for name in names]
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*words, strict=False))
    return ".".join(level[0] for level in levels) or f"{names[0]} …"
