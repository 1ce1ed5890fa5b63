"""What a trace has learnt so far: the mutable side of tracing, which `build` freezes into a ChannelGraph.

Rules call these methods; they never look at each other's results. Everything is written down in unresolved parts,
because a later `add` may still unite, and a later `chunk` still cut, any block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import torch

from canon.graph.blocks import Blocks, Part
from canon.graph.spec import Reach, StageKind
from canon.graph.values import ChannelAxis, Extent, Parts, Value, leaves


@dataclass
class MapRecord:
    """A linear map, in unresolved parts."""

    name: str
    node: str
    weight: str
    bias: str | None
    row_axis: int
    column_axis: int
    groups: int
    rows: Parts
    columns: Parts | None
    zero_padding: bool
    cropping: tuple[int, ...] | None


@dataclass
class StageRecord:
    """A per-channel stage over a whole axis, in unresolved parts."""

    kind: StageKind
    node: str
    inputs: tuple[Parts, ...]
    output: Parts
    params: dict[str, str]
    axis: int
    eps: float
    function: Callable[[torch.Tensor], torch.Tensor] | None
    keeps_constants: bool
    cropping: tuple[int, ...] | None = None
    reach: Reach = "pointwise"
    ball: float = inf


@dataclass
class Points:
    """Union-find over points: points in one class share a scale and are one tap."""

    parent: list[int] = field(default_factory=list)
    fixed: set[int] = field(default_factory=set)
    curved: set[int] = field(default_factory=set)
    sized: set[int] = field(default_factory=set)
    stretches: dict[tuple[int, int], int] = field(default_factory=dict)
    """A cut activation is several: by point and first channel, the point of a stretch that does not begin it."""

    def at(self, part: Part) -> int:
        """The point of a resolved part."""
        return part.point if part.start == 0 else self.stretches[part.point, part.start]

    def cut(self, places: Sequence[tuple[int, int]], at: int) -> None:
        """Stretches that begin at these points and channels are cut in two; what they share stays shared."""
        made: dict[int, int] = {}
        for point, start in places:
            old = self.find(point if start == 0 else self.stretches[point, start])
            if old not in made:
                made[old] = self.new()
                for facts in (self.fixed, self.curved, self.sized):
                    if old in facts:
                        facts.add(made[old])
            self.stretches[point, start + at] = self.new()
            self.parent[self.stretches[point, start + at]] = made[old]

    def new(self) -> int:
        """A point with a scale of its own."""
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def find(self, point: int) -> int:
        """The representative of a point's class."""
        root = point
        while self.parent[root] != root:
            root = self.parent[root]
        while self.parent[point] != root:
            self.parent[point], point = root, self.parent[point]
        return root

    def unite(self, a: int, b: int) -> None:
        """From now on both points share one scale."""
        a, b = self.find(a), self.find(b)
        if a != b:
            a, b = min(a, b), max(a, b)
            self.parent[b] = a
            for facts in (self.fixed, self.curved, self.sized):
                if b in facts:
                    facts.add(a)

    def fix(self, point: int) -> None:
        """No scale passes here."""
        self.fixed.add(self.find(point))

    def curve(self, point: int) -> None:
        """A nonlinearity reads this point, so only positive scale passes."""
        self.curved.add(self.find(point))

    def size(self, point: int) -> None:
        """An odd function reads this point, so only a change of sign passes."""
        self.sized.add(self.find(point))

    def freedom(self, point: int) -> int:
        """What is known to pass here: 0 nothing, 1 a sign, 2 positive scale, 3 any scale."""
        point = self.find(point)
        facts = (self.fixed, self.sized, self.curved)
        return next((place for place, held in enumerate(facts) if point in held), len(facts))


@dataclass(frozen=True)
class Assumed:
    """A number in a program that should be the length of some parts."""

    node: str
    path: tuple[int, ...]
    """Which of the node's operands: its position, and its position inside a list."""

    parts: Parts


class State:
    """The records of a trace under way."""

    def __init__(self) -> None:
        self.blocks = Blocks()
        self.points = Points()
        self.homes: dict[int, int] = {}
        self.blocks.on_cut = self._cut
        self.maps: list[MapRecord] = []
        self.stages: list[StageRecord] = []
        self.pins: list[tuple[Parts, str, str]] = []
        self.equal: list[tuple[list[Parts], str]] = []
        self.same: list[tuple[Parts, Parts, str]] = []
        self.grouped: list[tuple[Parts, int, str]] = []
        self.trading: list[tuple[Parts, int]] = []
        self.rigid: list[tuple[Parts, str, str]] = []
        self.even: list[list[Parts]] = []
        self.bound: dict[tuple[str, int], tuple[str, Parts]] = {}
        self.followed: set[str] = set()
        self.foreign: dict[str, str] = {}
        self.readers: dict[str, str] = {}
        self.unsaved: frozenset[str] = frozenset()
        self.assumes = False
        self.assumed: list[Assumed] = []
        self.space_of: dict[int, int] = {}
        self.node = ""

    def follow_size(self, size: object, parts: Parts, reason: str, path: tuple[int, ...] = ()) -> None:
        """A size is given for an axis made of `parts`; where it does not follow a rewrite, their number must stay.

        A program holds sizes as numbers, wherever they came from. A number that is the length of the axis is then
        assumed to follow, and `widths` asks the model. `path` says which operand it is.
        """
        if isinstance(size, Extent):
            self.same.append((size.parts, parts, self.node))
        elif not (path and self.assume(size, parts, path)) and size != -1:
            self.keep_width(parts, reason)

    def assume(self, size: object, parts: Parts, path: tuple[int, ...]) -> bool:
        """Whether a number among a program's operands may be the length of these parts, to be asked of the model."""
        if not self.assumes or size != self.blocks.length(parts):
            return False
        self.assumed.append(Assumed(self.node, path, parts))
        return True

    def pin(self, parts: Parts, reason: str) -> None:
        """These channels must stay as they are."""
        if parts:
            self.pins.append((parts, reason, self.node))
            self.fix(parts)

    def keep_width(self, parts: Parts, reason: str) -> None:
        """The number of these channels must stay; their order and scales need not."""
        if parts:
            self.rigid.append((parts, reason, self.node))

    def mixed(self, parts: Parts, reason: str, ball: float = inf) -> Parts:
        """A function of all channels that does not care for their order: it gives each what it gives the others."""
        self.keep_width(parts, reason)
        return self.inhomogeneous(parts, None, keeps_constants=False, ball=ball)

    def pin_value(self, value: object, reason: str) -> None:
        """Pin whatever channels a value has, looking into lists, tuples and dicts; counted ones keep their number."""
        for leaf in leaves(value):
            if isinstance(leaf, Value) and leaf.channels is not None:
                self.pin(leaf.channels.parts, reason)
            elif isinstance(leaf, Extent):
                self.keep_width(leaf.parts, reason)

    def open(self, width: int, axis: int) -> ChannelAxis:
        """A new space of `width` channels."""
        return ChannelAxis(axis, (self._part(self.blocks.new(width), 1),))

    def _part(self, block: int, repeat: int, place: tuple[int, int] | None = None) -> Part:
        """A block's channels at a new point."""
        point = self.points.new()
        self.homes[point] = block
        return Part(block, repeat, point, 0, place)

    def _cut(self, block: int, at: int) -> None:
        """A block is about to be cut: so is every activation that it stands in."""
        places = []
        for point, home in self.homes.items():
            start = 0
            for leaf in self.blocks.resolve(home):
                if leaf == block:
                    places.append((point, start))
                start += self.blocks.width(leaf)
        self.points.cut(places, at)

    def bind(self, param: str, axis: int, role: str, parts: Parts) -> None:
        """Tie a tensor's axis to channels. Bound twice, the two become one space and one scale."""
        self.followed.add(param)
        known = self.bound.setdefault((param, axis), (role, parts))
        if known[1] is parts:
            return
        same = known[0] == role and self.blocks.unite(known[1], parts)
        if not same:
            reason = f"tensor '{param}' is used in two ways"
            self.pin(known[1], reason)
            self.pin(parts, reason)
            return
        self.tie(known[1], parts)

    def tie(self, a: Parts, b: Parts) -> None:
        """Two stretches over the same blocks share their scales."""
        a, b = self.blocks.resolve_parts(a), self.blocks.resolve_parts(b)
        for first, second in zip(a, b, strict=True):
            self.points.unite(self.points.at(first), self.points.at(second))

    def fix(self, parts: Parts) -> None:
        """No scale passes here."""
        for part in self.blocks.resolve_parts(parts):
            self.points.fix(self.points.at(part))

    def curve(self, parts: Parts) -> None:
        """A nonlinearity reads this, so only positive scale passes."""
        for part in self.blocks.resolve_parts(parts):
            self.points.curve(self.points.at(part))

    def unite(self, a: Parts, b: Parts, reason: str) -> bool:
        """Make two stretches one; pin both where that cannot be."""
        if self.blocks.unite(a, b):
            return True
        self.pin(a, reason)
        self.pin(b, reason)
        return False

    def fresh(self, parts: Parts) -> Parts:
        """The same channels at new points."""
        resolved = self.blocks.resolve_parts(parts)
        return tuple(self._part(p.block, p.repeat, p.place) for p in resolved)

    def stage(
        self,
        kind: StageKind,
        inputs: Sequence[Parts],
        *,
        params: dict[str, str] | None = None,
        axis: int = 0,
        eps: float = 0.0,
        function: Callable[[torch.Tensor], torch.Tensor] | None = None,
        keeps_constants: bool = True,
        cropping: tuple[int, ...] | None = None,
        reach: Reach = "pointwise",
        ball: float = inf,
    ) -> Parts:
        """Write a per-channel stage down and give the parts of its output."""
        output = self.fresh(inputs[0])
        self.stages.append(
            StageRecord(
                kind,
                self.node,
                tuple(inputs),
                output,
                params or {},
                axis,
                eps,
                function,
                keeps_constants,
                cropping,
                reach,
                ball,
            )
        )
        return output

    def homogeneous(
        self,
        parts: Parts,
        function: Callable[[torch.Tensor], torch.Tensor] | None = None,
        *,
        curved: bool = False,
        keeps_constants: bool = True,
        reach: Reach = "pointwise",
    ) -> Parts:
        """A per-channel function that lets positive scale pass."""
        if function is None and keeps_constants:
            return parts
        output = self.stage("activation", [parts], function=function, keeps_constants=keeps_constants, reach=reach)
        self.tie(parts, output)
        if curved:
            self.curve(output)
        return output

    def inhomogeneous(
        self,
        parts: Parts,
        function: Callable[[torch.Tensor], torch.Tensor] | None,
        *,
        keeps_constants: bool = True,
        ball: float = inf,
    ) -> Parts:
        """A per-channel function that lets no scale pass, and a sign if it is odd: `f(−u) = −f(u)`."""
        output = self.stage("activation", [parts], function=function, keeps_constants=keeps_constants, ball=ball)
        if function is not None and is_odd(function):
            self.tie(parts, output)
            for part in self.blocks.resolve_parts(output):
                self.points.size(self.points.at(part))
        else:
            self.fix(parts)
            self.fix(output)
        return output


_ASKED: Final = torch.logspace(-4, 2, 97, dtype=torch.float64)


@torch.no_grad()
def is_odd(function: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether `f(−u) = −f(u)`, asked at many values."""
    up, down = function(_ASKED), function(-_ASKED)
    return bool(((up + down).abs() <= 1e-12 * up.abs()).all())
