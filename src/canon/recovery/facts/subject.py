"""Subject: a model as recovery sees it, tensors and channel graph, at one moment of its way to a compact form."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from torch import Tensor
from torch.nn.functional import leaky_relu

from canon.describe import Array
from canon.graph import ChannelGraph, Consumer, Pin, Producer, Space, Stage
from canon.recovery.tolerance import Tolerance
from canon.rewrite.axes import by_row, columns_of
from canon.rewrite.kernels import Kernel


@dataclass(frozen=True, eq=False)
class Subject:
    """What passes look at. A rewrite makes a new one."""

    graph: ChannelGraph
    tensors: Mapping[str, Tensor]
    """By first name."""

    tolerance: Tolerance
    widths: Mapping[int, int]
    """Known widths by space id: a space does not become narrower."""

    merged: Mapping[int, Array] = field(default_factory=dict)
    """By space id: how many channels each one stands for."""

    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    """By weight of a convolution whose kernels may become smaller: how it lays them."""

    @staticmethod
    def of(
        graph: ChannelGraph,
        tensors: Mapping[str, Tensor],
        tolerance: Tolerance,
        widths: Mapping[int, int],
        kernels: Mapping[str, Kernel],
    ) -> Subject:
        """A model as it is given: what a trace cannot know of functions is read off the tensors."""
        slopes = {pin.node: name for name, pin in graph.held.items() if pin.reason == "read by prelu"}
        spaces = []
        for space in graph.spaces:
            stages = (
                _sloped(stage, tensors[slopes[stage.node]]) if stage.node in slopes else stage for stage in space.stages
            )
            spaces.append(replace(space, stages=tuple(stages)))
        return Subject(replace(graph, spaces=tuple(spaces)), tensors, tolerance, widths, kernels=kernels)

    def members(self, space: Space) -> Array:
        """How many channels each channel of a space stands for."""
        return self.merged[space.id] if space.id in self.merged else np.ones(space.width)

    def stored_rows(self, space: Space, producer: Producer) -> Tensor:
        """What a producer gives to a space: `width x numbers`, as the weight has them."""
        linear = self.graph.maps[producer.map]
        weight = by_row(self.tensors[linear.weight], linear)
        return weight[producer.offset : producer.offset + space.width * producer.repeat].reshape(space.width, -1)

    def rows(self, space: Space, producer: Producer) -> Array:
        """The same in float64, on the host."""
        return np.asarray(self.stored_rows(space, producer).double().cpu().numpy())

    def columns(self, space: Space, consumer: Consumer) -> Tensor:
        """How a layer reads a space: `rows x width x numbers`, as the weight has them."""
        linear, length = self.graph.maps[consumer.map], space.width * consumer.repeat
        read = columns_of(self.tensors[linear.weight].detach(), linear, consumer.offset, length)
        return read.reshape(read.shape[0], space.width, -1)

    def array(self, name: str) -> Array:
        """A tensor as float64 on the host."""
        return np.asarray(self.tensors[name].detach().double().cpu().numpy())

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Subject:
        """The same with some tensors replaced."""
        changed, original = dict(tensors), self.tensors
        if isinstance(original, ChainMap):
            changed, original = {**original.maps[0], **changed}, original.maps[1]
        return replace(self, tensors=ChainMap(changed, original))  # type: ignore[arg-type]

    def barred(self, spaces: Iterable[int], reason: str) -> Subject:
        """The same with some spaces pinned: no pass touches them."""
        chosen, pin = set(spaces), Pin(reason, "recovery")
        chosen |= {peer for space in chosen for peer in self.graph.spaces[space].peers}
        marked = (replace(s, pins=(*s.pins, pin)) if s.id in chosen else s for s in self.graph.spaces)
        return replace(self, graph=replace(self.graph, spaces=tuple(marked)))

    @property
    def narrowing(self) -> tuple[Space, ...]:
        """The spaces that may become narrower, and that something reads."""
        return tuple(s for s in self.graph.free if s.consumers and s.width > self.widths.get(s.id, 0))


def _sloped(stage: Stage, slope: Tensor) -> Stage:
    """A PReLU of one slope for all channels."""
    if stage.kind != "activation" or stage.function is not None:
        return stage
    function = partial(leaky_relu, negative_slope=slope.item())
    return replace(stage, function=function, keeps_constants=True)
