"""What is alive, against a walk over single rows and columns."""

from __future__ import annotations

import torch
from torch import Tensor

from canon.graph import ChannelGraph, trace
from canon.recovery.liveness import Reads, find_live
from tests.preservation import randomize
from tests.recovery.small import Gated, Residual, Small, example


def random_reads(graph: ChannelGraph, density: float, generator: torch.Generator) -> dict[int, Tensor]:
    """By map: which row reads which column, at random."""
    found = {}
    for index, linear in enumerate(graph.maps):
        rows = sum(s.length for s in linear.rows)
        columns = sum(s.length for s in linear.columns) if linear.columns is not None else 3
        found[index] = torch.rand(1, rows, columns, generator=generator) < density
    return found


def reading(marks: Tensor) -> Reads:
    """Which columns rows read, from `1 x rows x columns`."""
    return lambda live: (marks & live[:, :, None]).any(dim=1)


def walk(graph: ChannelGraph, reads: dict[int, Tensor]) -> dict[int, set[int]]:
    """The oracle: follow single channels back from what is pinned."""
    live: dict[int, set[int]] = {
        s.id: set(range(s.width)) if s.pins or not s.consumers else set() for s in graph.spaces
    }
    todo = [(index, channel) for index, channels in live.items() for channel in channels]
    while todo:
        index, channel = todo.pop()
        for producer in graph.spaces[index].producers:
            linear = graph.maps[producer.map]
            for segment in linear.columns or ():
                for column in range(segment.length):
                    read = reads[producer.map][0, producer.offset + channel, segment.offset + column]
                    if read and column not in live[segment.space]:
                        live[segment.space].add(column)
                        todo.append((segment.space, column))
    return live


def test_agrees_with_a_walk() -> None:
    for kind in (Residual, Gated):
        model = randomize(kind(), seed=0)
        assert isinstance(model, Small)
        graph = trace(model, example())
        widths = {space.id: space.width for space in graph.spaces}
        for seed in range(30):
            generator = torch.Generator().manual_seed(seed)
            reads = random_reads(graph, 0.05 + 0.02 * seed, generator)
            found = find_live(graph, widths, {index: reading(marks) for index, marks in reads.items()}, {})
            for space, channels in walk(graph, reads).items():
                assert set(torch.nonzero(found[space]).flatten().tolist()) == channels


def test_a_cycle_of_dead_channels_is_dead() -> None:
    model = randomize(Residual(), seed=0)
    graph = trace(model, example())
    widths = {space.id: space.width for space in graph.spaces}
    reads = random_reads(graph, 1.1, torch.Generator())
    outer, inner = graph.space_named("stem").id, graph.space_named("p1").id
    for index, linear in enumerate(graph.maps):
        if linear.name in ("p1", "q1", "fc"):
            reads[index][0, :, 5] = False
        if linear.name == "p1":
            reads[index][0, 4] = False
            reads[index][0, 4, 5] = True
        if linear.name == "p2":
            reads[index][0, :, 4] = False
            reads[index][0, 5, 4] = True
    marked = {index: reading(marks) for index, marks in reads.items()}
    live = find_live(graph, widths, marked, {})
    assert live[outer].tolist() == [True] * 5 + [False]
    assert live[inner].tolist() == [True] * 4 + [False]
    held = find_live(
        graph, widths, {index: reading(marks) for index, marks in reads.items()}, {outer: torch.arange(6) == 5}
    )
    assert bool(held[outer].all())
    assert bool(held[inner].all()), "what a protected channel reads is alive"
