"""Channel blocks while a trace is under way: they can be united and cut, and are read back resolved.

A block starts as one layer's output channels. `add` unites two blocks, `chunk` cuts one. Both are recorded as
rewriting rules from a block to a list of blocks, so nothing that was written down before has to be revisited.

Parts of an axis stand side by side. Behind a channel shuffle they do not: then all of them have a place, which says
where their channels begin and how far apart they are, and they are listed by where they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Part:
    """A stretch of a channel axis during tracing: a block, its repeat count and the activation's point."""

    block: int
    repeat: int
    point: int

    start: int = 0
    """First channel of the point's activation that stands here: not 0 after a cut."""

    place: tuple[int, int] | None = None
    """Where its first channel begins and how far apart channels are; None: right behind the part before it."""

    def repeated(self, factor: int) -> Part:
        """The same stretch with `factor` times as many entries per channel."""
        place = None if self.place is None else (self.place[0] * factor, self.place[1] * factor)
        return Part(self.block, self.repeat * factor, self.point, self.start, place)

    def moved(self, by: int) -> Part:
        """The same stretch further on, if it has a place."""
        return self if self.place is None else replace(self, place=(self.place[0] + by, self.place[1]))


class Blocks:
    """Widths of blocks and the rules that unite and cut them."""

    def __init__(self) -> None:
        self._width: list[int] = []
        self._rule: dict[int, tuple[int, ...]] = {}
        self.on_cut: Callable[[int, int], None] = lambda block, at: None
        """Told before a block is cut."""

    def new(self, width: int) -> int:
        """Open a block of `width` channels."""
        self._width.append(width)
        return len(self._width) - 1

    def width(self, block: int) -> int:
        """Channels of a block."""
        return self._width[block]

    def resolve(self, block: int) -> tuple[int, ...]:
        """The blocks that stand for this one after all rules so far."""
        rule = self._rule.get(block)
        if rule is None:
            return (block,)
        resolved = tuple(leaf for child in rule for leaf in self.resolve(child))
        self._rule[block] = resolved
        return resolved

    def resolve_parts(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """The same stretch of an axis, written in resolved blocks."""
        if all(part.block not in self._rule for part in parts):
            return parts
        resolved: list[Part] = []
        for part in parts:
            start = part.start
            for leaf in self.resolve(part.block):
                place = part.place
                if place is not None:
                    place = (place[0] + place[1] * (start - part.start), place[1])
                resolved.append(Part(leaf, part.repeat, part.point, start, place))
                start += self._width[leaf]
        return _in_order(resolved)

    def length(self, parts: tuple[Part, ...]) -> int:
        """Entries of an axis made of these parts."""
        return sum(self._width[part.block] * part.repeat for part in parts)

    def cut(self, block: int, at: int) -> tuple[int, int]:
        """Cut a resolved block after its first `at` channels."""
        self.on_cut(block, at)
        left, right = self.new(at), self.new(self._width[block] - at)
        self._rule[block] = (left, right)
        return left, right

    def cut_parts(self, parts: tuple[Part, ...], at: int) -> tuple[tuple[Part, ...], tuple[Part, ...]] | None:
        """Cut an axis after `at` entries, or None when that would cut through one channel's repeats."""
        parts = self.resolve_parts(parts)
        if _placed(parts):
            return self._cut_placed(parts, at)
        left: list[Part] = []
        for index, part in enumerate(parts):
            length = self._width[part.block] * part.repeat
            if at == 0:
                return tuple(left), parts[index:]
            if at >= length:
                left.append(part)
                at -= length
                continue
            if at % part.repeat:
                return None
            channels = at // part.repeat
            first, second = self.cut(part.block, channels)
            head = Part(first, part.repeat, part.point, part.start)
            tail = Part(second, part.repeat, part.point, part.start + channels)
            # Later parts may name the block that was just cut, so they are resolved again.
            return (
                self.resolve_parts((*left, head)),
                self.resolve_parts((tail, *parts[index + 1 :])),
            )
        return tuple(left), ()

    def _cut_placed(self, parts: tuple[Part, ...], at: int) -> tuple[tuple[Part, ...], tuple[Part, ...]] | None:
        while True:
            left: list[Part] = []
            right: list[Part] = []
            for part in parts:
                assert part.place is not None, "all parts have places, or none"
                begin, step = part.place
                channels = min(max(-((begin - at) // step), 0), self._width[part.block])
                if channels and begin + step * (channels - 1) + part.repeat > at:
                    return None
                if 0 < channels < self._width[part.block]:
                    self.cut(part.block, channels)
                    break
                (left if channels else right).append(part)
            else:
                return self._settled(left), self._settled([part.moved(-at) for part in right])
            parts = self.resolve_parts(parts)

    def _settled(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Parts with places; without, where they stand side by side anyway."""
        offset = 0
        for part in _in_order(parts):
            alone = self._width[part.block] == 1
            if part.place is None or part.place[0] != offset or (part.place[1] != part.repeat and not alone):
                return _in_order(parts)
            offset += self._width[part.block] * part.repeat
        return tuple(replace(part, place=None) for part in _in_order(parts))

    def with_places(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """The same axis with every part's place said."""
        parts = self.resolve_parts(parts)
        if _placed(parts):
            return parts
        found, offset = [], 0
        for part in parts:
            found.append(replace(part, place=(offset, part.repeat)))
            offset += self._width[part.block] * part.repeat
        return tuple(found)

    def join(self, axes: Sequence[tuple[Part, ...]]) -> tuple[Part, ...]:
        """Axes one behind the other."""
        if not any(_placed(parts) for parts in axes):
            return tuple(part for parts in axes for part in parts)
        found: list[Part] = []
        offset = 0
        for parts in axes:
            found += [part.moved(offset) for part in self.with_places(parts)]
            offset += self.length(parts)
        return _in_order(found)

    def rearrange(self, parts: tuple[Part, ...], to: Sequence[int]) -> tuple[Part, ...] | None:
        """The axis after entry `i` went to `to[i]`; None where fewer than every second channel keeps its neighbour."""
        parts = self.with_places(parts)
        pieces = [len(self._runs(part, to)) for part in parts]
        if not all(pieces) or sum(pieces) > len(parts) + self.length(parts) // 2:
            return None
        while True:
            found = []
            for part in parts:
                runs = self._runs(part, to)
                if len(runs) > 1:
                    self.cut(part.block, runs[0][2])
                    break
                found.append(replace(part, place=runs[0][:2]))
            else:
                return self._settled(found)
            parts = self.resolve_parts(parts)

    def _runs(self, part: Part, to: Sequence[int]) -> list[tuple[int, int, int]]:
        """Where a part's channels go, in stretches that stay evenly spaced: begin, step, channels; or nothing."""
        assert part.place is not None, "callers give places"
        begin, step = part.place
        runs: list[tuple[int, int, int]] = []
        for at in range(begin, begin + step * self._width[part.block], step):
            new = to[at]
            if any(to[at + more] != new + more for more in range(part.repeat)):
                return []  # it would be torn apart
            last = runs[-1] if runs else None
            if last is not None and last[2] == 1 and new > last[0]:
                runs[-1] = (last[0], new - last[0], 2)
            elif last is not None and last[2] > 1 and new == last[0] + last[1] * last[2]:
                runs[-1] = (last[0], last[1], last[2] + 1)
            else:
                runs.append((new, part.repeat, 1))
        return runs

    def order(self, parts: tuple[Part, ...]) -> tuple[int, ...] | None:
        """Where on the axis the entries stand that the parts list one behind the other; None: just so."""
        parts = self.resolve_parts(parts)
        if not _placed(parts):
            return None
        return tuple(
            begin + step * channel + entry
            for part in parts
            for begin, step in ([part.place] if part.place is not None else [])
            for channel in range(self._width[part.block])
            for entry in range(part.repeat)
        )

    def unite(self, a: tuple[Part, ...], b: tuple[Part, ...]) -> bool:
        """Make two axes one; False, with as much united as possible, when their repeats or places differ."""
        if _placed(a) != _placed(b):
            a, b = self.with_places(a), self.with_places(b)
        while True:
            a, b = self.resolve_parts(a), self.resolve_parts(b)
            if not a or not b:
                return not a and not b
            first, second = a[0], b[0]
            wa, wb = self._width[first.block], self._width[second.block]
            if first.repeat != second.repeat or not _begin_alike(first, second, min(wa, wb)):
                return False
            if wa == wb:
                if first.block != second.block:
                    old, new = max(first.block, second.block), min(first.block, second.block)
                    self._rule[old] = (new,)
                a, b = a[1:], b[1:]
            elif wa > wb:
                if first.block == second.block:
                    return False
                self.cut(first.block, wb)
            else:
                self.cut(second.block, wa)


def _placed(parts: Sequence[Part]) -> bool:
    return any(part.place is not None for part in parts)


def _in_order(parts: Sequence[Part]) -> tuple[Part, ...]:
    return tuple(sorted(parts, key=lambda part: part.place[0] if part.place else 0) if _placed(parts) else parts)


def _begin_alike(first: Part, second: Part, channels: int) -> bool:
    """Whether some channels of two parts stand at the same places."""
    if first.place is None or second.place is None:
        return first.place == second.place
    return first.place[0] == second.place[0] and (channels == 1 or first.place[1] == second.place[1])
