"""Blocks that repeat are run once, and the graph is the one that running all of them gives."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from canon.graph import ChannelGraph, tracer
from canon.graph.recorded import Program, record
from canon_benchmarks.families import FAMILIES, build

WIDTH, HIDDEN, EXAMPLE = 6, 10, torch.zeros(2, 6)


class Block(nn.Module):
    """A residual block with a number of its own."""

    runs: ClassVar[list[int]] = []

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.wide, self.narrow = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        Block.runs.append(1)
        if x.shape[0] > 100:
            return x
        hidden = self.between(torch.relu(self.wide(x)))
        if cache is not None:
            cache.append(hidden)
        result: Tensor = x + self.narrow(hidden if mask is None else hidden * mask)
        return result

    def between(self, hidden: Tensor) -> Tensor:
        return hidden


class Scaled(Block):
    """The number of a block is part of what it computes."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden * (2.0 if self.number == 2 else 1.0)


class Chosen(Block):
    """The number of a block chooses what it does."""

    def between(self, hidden: Tensor) -> Tensor:
        return [torch.relu, torch.sigmoid, torch.tanh, torch.relu, torch.tanh][self.number](hidden)


class Branching(Block):
    """The number of a block decides whether it does something."""

    def between(self, hidden: Tensor) -> Tensor:
        return torch.sigmoid(hidden) if self.number else hidden


class Stack(nn.Module):
    """Five blocks, with something between them that is no block."""

    def __init__(self, kind: type[Block], depth: int = 5) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.blocks = nn.ModuleList(kind(number) for number in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for number, block in enumerate(self.blocks):
            x = torch.tanh(x) if number == 3 else x
            x = self.call(block, x)
        result: Tensor = self.last(x)
        return result

    def call(self, block: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = block(x)
        return result


class Masked(Stack):
    """Blocks share an input."""

    def call(self, block: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = block(x, mask=torch.ones(1))
        return result


class Cached(Stack):
    """Blocks are handed something that may be anything."""

    def call(self, block: nn.Module, x: Tensor) -> Tensor:
        seen = _Seen()
        result: Tensor = block(x, cache=seen) + seen[-1].sum()
        return result


class _Seen(list[Tensor]):
    pass


def shown(graph: ChannelGraph) -> ChannelGraph:
    """A graph in which functions are compared by whether there is one."""
    spaces = [
        replace(space, stages=tuple(replace(s, function=s.function and torch.relu) for s in space.stages))
        for space in graph.spaces
    ]
    return replace(graph, spaces=tuple(spaces))


def both(model: nn.Module, example: tuple[Any, ...]) -> tuple[ChannelGraph, ChannelGraph, Program]:
    """The graph with blocks run once, the one with all run, and the program."""
    found = [
        tracer._by_program(model, partial(record, example=example, repeats=repeats), "recorded")
        for repeats in (True, False)
    ]
    return shown(found[0]), shown(found[1]), record(model, example)


@pytest.mark.parametrize("kind", [Stack, Masked])
def test_alike_blocks_are_run_once(kind: type[Stack]) -> None:
    once, all_run, program = both(kind(Block).eval(), (EXAMPLE,))
    assert once == all_run
    assert program.repeated == 4
    assert len(once.free) == 6


@pytest.mark.parametrize("depth", [4, 12])
def test_runs_do_not_grow_with_depth(depth: int) -> None:
    Block.runs.clear()
    record(Stack(Block, depth).eval(), (EXAMPLE,))
    assert len(Block.runs) == 1


@pytest.mark.parametrize("block", [Scaled, Chosen, Branching])
def test_a_block_that_asks_for_its_number_is_run(block: type[Block]) -> None:
    model = Stack(block).eval()
    once, all_run, program = both(model, (EXAMPLE,))
    assert once == all_run
    assert program.repeated == 0
    assert [b.number for b in model.blocks] == [0, 1, 2, 3, 4]


def test_blocks_that_are_given_objects_are_run() -> None:
    once, all_run, program = both(Cached(Block).eval(), (EXAMPLE,))
    assert once == all_run
    assert program.repeated == 0


def test_blocks_of_two_kinds_are_told_apart() -> None:
    model = Stack(Block, 8)
    for block in (model.blocks[1], model.blocks[5], model.blocks[6]):
        block.narrow = nn.Linear(HIDDEN, WIDTH, bias=False)
    once, all_run, program = both(model.eval(), (EXAMPLE,))
    assert once == all_run
    assert program.repeated == 6


def test_shared_layers_are_told_apart() -> None:
    model = Stack(Block)
    model.blocks[2].narrow = model.blocks[1].narrow
    once, all_run, _ = both(model.eval(), (EXAMPLE,))
    assert once == all_run
    assert len({space.name for space in once.free}) == 5


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "T5"])
def test_families_give_the_same_graph(name: str) -> None:
    family = FAMILIES[name]
    deep: dict[str, Any] = {key: 4 for key in ("num_hidden_layers", "n_layer", "num_layers") if key in family.config}
    model, example = build(replace(family, config={**family.config, **deep}))
    once, all_run, program = both(model, example)
    assert once == all_run
    assert program.repeated >= 3


class MakesMasks(nn.Module):
    """Makes the mask that it is not given, but never while it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(len(x))
        result: Tensor = self.narrow(self.wide(x).relu() * mask[:, None])
        return result


def test_what_is_prepared_only_where_nothing_is_compiled() -> None:
    names = [str(node.target) for node in record(MakesMasks().eval(), (EXAMPLE,)).graph.nodes]
    assert sum("linear" in name for name in names) == 2
