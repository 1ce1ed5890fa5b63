"""Blocks that are united and cut, beside an oracle that knows every channel by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from canon.graph.blocks import Blocks, Part


class Oracle:
    """Union-find over single channels."""

    def __init__(self) -> None:
        self.parent: list[int] = []

    def new(self, width: int) -> list[int]:
        start = len(self.parent)
        self.parent += range(start, start + width)
        return list(range(start, start + width))

    def find(self, channel: int) -> int:
        while self.parent[channel] != channel:
            channel = self.parent[channel]
        return channel

    def unite(self, a: list[int], b: list[int]) -> None:
        for x, y in zip(a, b, strict=True):
            self.parent[self.find(x)] = self.find(y)


Axis = tuple[tuple[Part, ...], list[int]]


def spelled(blocks: Blocks, parts: tuple[Part, ...]) -> list[tuple[int, int]]:
    """An axis channel by channel: block and place in it."""
    resolved = blocks.resolve_parts(parts)
    return [(part.block, place) for part in resolved for place in range(blocks.width(part.block))]


@given(st.data())
def test_blocks_agree_with_single_channels(data: st.DataObject) -> None:
    blocks, oracle, axes = Blocks(), Oracle(), list[Axis]()
    for point in range(data.draw(st.integers(2, 5))):
        width = data.draw(st.sampled_from([1, 2, 3, 4, 6]))
        axes.append(((Part(blocks.new(width), 1, point),), oracle.new(width)))
    for _ in range(data.draw(st.integers(1, 8))):
        first = data.draw(st.sampled_from(axes))
        kind = data.draw(st.sampled_from(["cat", "cut", "unite"]))
        if kind == "cat":
            second = data.draw(st.sampled_from(axes))
            if len(first[1]) + len(second[1]) <= 24:
                axes.append((first[0] + second[0], first[1] + second[1]))
        elif kind == "cut" and len(first[1]) > 1:
            at = data.draw(st.integers(1, len(first[1]) - 1))
            cut = blocks.cut_parts(first[0], at)
            assert cut is not None
            axes += [(cut[0], first[1][:at]), (cut[1], first[1][at:])]
        elif kind == "unite":
            alike = [axis for axis in axes if len(axis[1]) == len(first[1])]
            second = data.draw(st.sampled_from(alike))
            assert blocks.unite(first[0], second[0])
            oracle.unite(first[1], second[1])
    places = [place for parts, _ in axes for place in spelled(blocks, parts)]
    classes = [oracle.find(channel) for _, channels in axes for channel in channels]
    assert len(places) == len(classes)
    assert len(set(zip(places, classes, strict=True))) == len(set(places)) == len(set(classes))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_stretches_of_one_activation_stay_apart(widths: list[int], data: st.DataObject) -> None:
    """After any cuts, point and start name every stretch of an activation once."""
    blocks = Blocks()
    parts: tuple[Part, ...] = (Part(blocks.new(sum(widths)), 2, 0),)
    rest, cut_at = parts, 0
    for width in widths[:-1]:
        cut = blocks.cut_parts(rest, width * 2)
        assert cut is not None
        assert cut[0][0].start == cut_at
        cut_at += width
        rest = cut[1]
    assert [part.start for part in blocks.resolve_parts(parts)] == [sum(widths[:k]) for k in range(len(widths))]
    assert blocks.length(parts) == sum(widths) * 2


def test_a_cut_through_one_channel_is_refused() -> None:
    blocks = Blocks()
    assert blocks.cut_parts((Part(blocks.new(3), 4, 0),), 6) is None


def test_axes_with_different_repeats_are_not_one() -> None:
    blocks = Blocks()
    flat, plain = Part(blocks.new(2), 3, 0), Part(blocks.new(6), 1, 1)
    assert not blocks.unite((flat,), (plain,))
