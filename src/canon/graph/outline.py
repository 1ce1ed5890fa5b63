"""The layers of a graph in short: what each one reads and makes, for whoever draws or lists a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from canon.graph.spec import ChannelGraph, Space, Stage


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer among its neighbours."""

    name: str
    kind: Literal["map", "depthwise"]
    """Whether it mixes channels, or goes channel by channel."""

    width: int
    """Output channels."""

    axis: int
    """Axis of the weight that holds them."""

    makes: tuple[str, ...]
    """The spaces that its output belongs to."""

    reads: tuple[str, ...]
    """The spaces that its input belongs to; none where it reads the model's input."""


def outline(graph: ChannelGraph) -> tuple[Layer, ...]:
    """Every layer once, in execution order.

    >>> from torch import nn, zeros
    >>> from canon.graph import trace
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    >>> [(layer.name, layer.width, layer.reads) for layer in outline(trace(net, zeros(1, 4)))]
    [('0', 8, ()), ('2', 2, ('0',))]
    """
    found: dict[str, tuple[float, Layer]] = {}
    for index, linear in enumerate(graph.maps):
        makes = tuple(dict.fromkeys(graph.spaces[segment.space].name for segment in linear.rows))
        reads = tuple(dict.fromkeys(graph.spaces[segment.space].name for segment in linear.columns or ()))
        width = sum(segment.length for segment in linear.rows)
        found.setdefault(linear.name, (index, Layer(linear.name, "map", width, linear.row_axis, makes, reads)))
    for space in graph.spaces:
        for position, stage in enumerate(space.stages):
            if stage.kind == "depthwise":
                name = stage.params["weight"].removesuffix(".weight")
                layer = Layer(name, "depthwise", space.width * stage.repeat, stage.axis, (space.name,), (space.name,))
                # After the layer that feeds it, and after depthwise layers that stand between the two.
                place = _feeder(space, stage) + (1 + position) / (2 + len(space.stages))
                found.setdefault(name, (place, layer))
    return tuple(layer for _, layer in sorted(found.values(), key=lambda item: item[0]))


def seen_share(graph: ChannelGraph, sizes: Mapping[str, int], used: Iterable[str]) -> float:
    """The share of numbers with a place in the graph: in a layer or stage, or held with the operation that reads them.

    Args:
        graph: A model's channel graph.
        sizes: Numbers of every tensor by first name.
        used: The tensors that the forward pass uses. What it uses and the graph knows nothing of is not seen.
    """
    names = [graph.aliases.get(name, name) for name in used]
    unseen = [name for name in names if name in graph.held and not graph.held[name].node]
    total = sum(sizes[name] for name in names)
    return 1 - sum(sizes[name] for name in unseen) / total if total else 1.0


def _feeder(space: Space, stage: Stage) -> int:
    """The last map that the input of a stage goes back to; -1 for the model's input."""
    makers = {later.output: later for later in space.stages}
    producers = {producer.point: producer.map for producer in space.producers}
    waiting, seen, last = [*stage.inputs], set(stage.inputs), -1
    while waiting:
        point = waiting.pop()
        last = max(last, producers.get(point, -1))
        for earlier in makers[point].inputs if point in makers else ():
            if earlier not in seen:
                seen.add(earlier)
                waiting.append(earlier)
    return last
