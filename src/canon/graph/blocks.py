"""Channel blocks while a trace is under way: they can be united and cut, and are read back resolved.

A block starts as one layer's output channels. `add` unites two blocks, `chunk` cuts one. Both are recorded as
rewriting rules from a block to a list of blocks, so nothing that was written down before has to be revisited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A stretch of a channel axis during tracing: a block, its repeat count and the activation's point."""

    block: int
    repeat: int
    point: int

    start: int = 0
    """First channel of the point's activation that stands here: not 0 after a cut."""

    def repeated(self, factor: int) -> Part:
        """The same stretch with `factor` times as many entries per channel."""
        return Part(self.block, self.repeat * factor, self.point, self.start)


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
                resolved.append(Part(leaf, part.repeat, part.point, start))
                start += self._width[leaf]
        return tuple(resolved)

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

    def unite(self, a: tuple[Part, ...], b: tuple[Part, ...]) -> bool:
        """Make two axes one; False, with as much united as possible, when their repeats differ."""
        while True:
            a, b = self.resolve_parts(a), self.resolve_parts(b)
            if not a or not b:
                return not a and not b
            first, second = a[0], b[0]
            if first.repeat != second.repeat:
                return False
            wa, wb = self._width[first.block], self._width[second.block]
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
