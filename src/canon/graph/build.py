"""Freeze a finished trace into a ChannelGraph: resolve blocks into spaces, points into taps, pins onto spaces."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from math import gcd, lcm
from typing import Final, Literal

from canon.graph.blocks import Part
from canon.graph.experts import whole_name
from canon.graph.spec import (
    ChannelGraph,
    Consumer,
    LinearMap,
    Pin,
    Producer,
    Segment,
    Space,
    Stage,
)
from canon.graph.state import State
from canon.graph.values import Parts

_ALIGNED: Final = 8
"""The products of experts that torch computes at once want rows of 16 bytes: so many numbers of two."""


class _Builder:
    def __init__(self, state: State) -> None:
        self.state = state
        self.space_of: dict[int, int] = {}
        self.pins: dict[int, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(list))
        self.groups: dict[int, int] = defaultdict(lambda: 1)
        self.trading: set[int] = set()
        self.rigid: dict[int, str] = {}
        self.peers: dict[int, set[int]] = defaultdict(set)
        self.multiples: dict[int, int] = {}
        self.producers: dict[int, list[Producer]] = defaultdict(list)
        self.consumers: dict[int, list[Consumer]] = defaultdict(list)
        self.stages: dict[int, list[Stage]] = defaultdict(list)
        self.names: dict[int, str] = {}
        self.known: dict[int, tuple[Segment, ...]] = {}

    def blocks(self, parts: Parts) -> list[int]:
        return [part.block for part in self.state.blocks.resolve_parts(parts)]

    def shape(self, parts: Parts) -> list[tuple[int, int]]:
        return [(part.block, part.repeat) for part in self.state.blocks.resolve_parts(parts)]

    def pin(self, parts: Parts, reason: str, node: str) -> None:
        for part in self.state.blocks.resolve_parts(parts):
            self.pins[part.block][reason, node].append(self.point(part))

    def keep_width(self, parts: Parts, reason: str, node: str) -> None:
        for part in self.state.blocks.resolve_parts(parts):
            self.rigid.setdefault(part.block, f"{reason} ({node})")

    def constraints(self) -> None:
        state = self.state
        for (param, _axis), (_, parts) in state.bound.items():
            if param in state.foreign and parts:
                self.pin(parts, f"tensor '{param}' is also used otherwise", state.foreign[param])
        for pieces, node in state.equal:
            if len({tuple(self.blocks(piece)) for piece in pieces}) > 1:
                for piece in pieces:
                    self.keep_width(piece, "chunks of one axis must stay equal in size", node)
        for first, second, node in state.same:
            if self.shape(first) != self.shape(second):
                for parts in (first, second):
                    self.keep_width(parts, "the size of one space is taken from another", node)
        for parts, groups, node in state.grouped:
            resolved = state.blocks.resolve_parts(parts)
            if len(resolved) == 1 and resolved[0].repeat == 1:
                block = resolved[0].block
                self.groups[block] = lcm(self.groups[block], groups)
                if state.blocks.width(block) % self.groups[block]:
                    self.pin(parts, "groups of different sizes meet", node)
            else:
                self.pin(parts, "groups over several joined spaces", node)
        self.trading = self._trading()
        for parts, reason, node in state.rigid:
            self.keep_width(parts, reason, node)
        for (param, _axis), (_, parts) in state.bound.items():
            if state.blocks.order(parts) is not None:
                self.keep_width(parts, "stands beside shuffled channels", param)
        for parts, reason, node in state.pins:
            self.pin(parts, reason, node)

    def _trading(self) -> set[int]:
        """Blocks of channels in groups that only norms with just these groups read."""
        uses = Counter(block for parts, _, _ in self.state.grouped for block in self.blocks(parts))
        norms = Counter(
            block
            for parts, groups in self.state.trading
            for block in self.blocks(parts)
            if groups == self.groups[block]
        )
        return {block for block, count in norms.items() if count == uses[block] and self.groups[block] > 1}

    def point(self, part: Part) -> int:
        """A cut activation is several: its stretches have numbers of their own."""
        return self.state.points.at(part)

    def segments(self, parts: Parts) -> tuple[Segment, ...]:
        # What one stage makes the next one reads, the very same parts; the records keep them alive.
        known = self.known.get(id(parts))
        if known is None:
            known = self.known[id(parts)] = self._segments(parts)
        return known

    def _segments(self, parts: Parts) -> tuple[Segment, ...]:
        found, offset = [], 0
        for part in self.state.blocks.resolve_parts(parts):
            space = self.space_of.setdefault(part.block, len(self.space_of))
            length = self.state.blocks.width(part.block) * part.repeat
            tap = self.state.points.find(self.point(part))
            found.append(Segment(space, part.repeat, self.point(part), tap, offset, length))
            offset += length
        return tuple(found)

    def map(self, index: int) -> LinearMap:
        record = self.state.maps[index]
        columns = None if record.columns is None else self.segments(record.columns)
        rows = self.segments(record.rows)
        for s in rows:
            self.producers[s.space].append(Producer(index, s.offset, s.repeat, s.point))
            self.names.setdefault(s.space, record.name)
        for s in columns or ():
            self.consumers[s.space].append(Consumer(index, s.offset, s.repeat, s.point, s.tap))
        return LinearMap(
            name=record.name,
            node=record.node,
            weight=record.weight,
            bias=record.bias,
            row_axis=record.row_axis,
            column_axis=record.column_axis,
            groups=record.groups,
            rows=rows,
            columns=columns,
            zero_padding=record.zero_padding,
            cropping=record.cropping,
        )

    def spread_stages(self) -> None:
        for record in self.state.stages:
            inputs = [self.segments(parts) for parts in record.inputs]
            for index, out in enumerate(self.segments(record.output)):
                self.stages[out.space].append(
                    Stage(
                        kind=record.kind,
                        node=record.node,
                        space=out.space,
                        inputs=tuple(parts[index].point for parts in inputs),
                        output=out.point,
                        params=record.params,
                        axis=record.axis,
                        offset=out.offset,
                        repeat=out.repeat,
                        eps=record.eps,
                        function=record.function,
                        cropping=record.cropping,
                        keeps_constants=record.keeps_constants,
                        reach=record.reach,
                        ball=record.ball,
                    )
                )

    def even(self) -> None:
        """Spaces that must stay equally wide; where one cannot change, none of them may."""
        experts: dict[str, list[Parts]] = defaultdict(list)
        for record in self.state.maps:
            whole = whole_name(record.weight)
            if whole is not None:
                experts[whole].append(record.rows)
        for together in (*self.state.even, *experts.values()):
            for blocks in zip(*(self.blocks(parts) for parts in together), strict=True):
                for block in blocks:
                    self.peers[block].update(set(blocks) - {block})
        for block in (block for rows in experts.values() for parts in rows for block in self.blocks(parts)):
            self.multiples[block] = gcd(_ALIGNED, self.state.blocks.width(block))
        for block, others in self.peers.items():
            if self.pins.get(block) or block in self.rigid:
                for other in others:
                    self.rigid.setdefault(other, "must stay as wide as a space that keeps its width")

    def spaces(self) -> tuple[Space, ...]:
        unique: dict[str, int] = defaultdict(int)
        result = []
        for block, index in sorted(self.space_of.items(), key=lambda item: item[1]):
            name = self.names.get(index, f"value{index}")
            unique[name] += 1
            if unique[name] > 1:
                name = f"{name}#{unique[name]}"
            result.append(
                Space(
                    id=index,
                    name=name,
                    width=self.state.blocks.width(block),
                    groups=self.groups[block],
                    trading=block in self.trading,
                    pins=tuple(
                        Pin(reason, node, tuple(dict.fromkeys(points)))
                        for (reason, node), points in self.pins.get(block, {}).items()
                    ),
                    producers=tuple(self.producers[index]),
                    consumers=tuple(self.consumers[index]),
                    stages=tuple(self.stages[index]),
                    rigid=self.rigid.get(block),
                    peers=tuple(sorted(self.space_of[b] for b in self.peers.get(block, ()) if b in self.space_of)),
                    multiple=self.multiples.get(block, 1),
                )
            )
        return tuple(result)


def build(
    state: State, aliases: Mapping[str, str], method: Literal["fx", "recorded", "export"], names: Iterable[str] = ()
) -> ChannelGraph:
    """The channel graph of a finished trace; `names` are those of all tensors."""
    builder = _Builder(state)
    builder.constraints()
    builder.even()
    maps = tuple(builder.map(index) for index in range(len(state.maps)))
    builder.spread_stages()
    spaces = builder.spaces()
    state.space_of = builder.space_of
    points = state.points
    taps = {p: points.find(p) for p in range(len(points.parent))}
    for block, index in builder.space_of.items():
        if builder.pins.get(block):
            # What must stay keeps its scale too.
            for producer in builder.producers[index]:
                points.fix(taps[producer.point])
            for stage in builder.stages[index]:
                points.fix(taps[stage.output])
    roots = set(taps.values())
    return ChannelGraph(
        spaces=spaces,
        maps=maps,
        taps=taps,
        fixed_taps=frozenset(t for t in roots if t in points.fixed or t in points.sized),
        signed_taps=frozenset(t for t in roots if points.freedom(t) == 3),
        odd_taps=frozenset(t for t in roots if points.freedom(t) == 1 and t not in points.curved),
        aliases=dict(aliases),
        method=method,
        held=_held(state, maps, spaces, names),
        orders=_orders(state),
    )


def _orders(state: State) -> dict[tuple[str, int], tuple[int, ...]]:
    """Tensors that ride along with channels that do not stand side by side."""
    orders = {bound: state.blocks.order(parts) for bound, (_, parts) in state.bound.items() if bound[1] >= 0}
    return {bound: order for bound, order in orders.items() if order is not None}


def _held(state: State, maps: Iterable[LinearMap], spaces: Iterable[Space], names: Iterable[str]) -> dict[str, Pin]:
    """The tensors that no channel of the graph goes along with, and what reads them."""
    placed = {name for linear in maps for name in (linear.weight, linear.bias)}
    placed |= {name for space in spaces for stage in space.stages for name in stage.params.values()}
    found = {}
    for name in names:
        if name not in placed:
            reader = state.readers.get(name)
            if name in state.unsaved:
                found[name] = Pin("a buffer that a checkpoint leaves out", "buffer")
            elif reader is None:
                found[name] = Pin("nothing that was followed reads it", "")
            else:
                found[name] = Pin(f"read by {reader}", state.foreign.get(name, ""))
    return found
