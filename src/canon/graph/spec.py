"""The channel graph as data: what a trace finds, and nothing that computes.

Vocabulary (docs/architecture.md has the long form):

* space    a set of channel axes that can only move together
* point    one activation as seen inside a space: the value after one per-channel function
* tap      the points of a space that share one scale; a consumer reads a space at a tap
* segment  a stretch of a channel axis: one space, each channel repeated `repeat` times
* map      a Conv or Linear layer: a producer of rows and a consumer of columns
* stage    a per-channel function between points: norm, depthwise kernel, activation, gate, ...
* pin      the reason why a space must stay as it is, and the node that caused it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

import torch

from canon._shown import Shown

StageKind = Literal["norm", "instance_norm", "depthwise", "scale", "shift", "slope", "activation", "add", "mul"]

Reach = Literal["pointwise", "mean", "extreme", "other"]
"""How an activation sees positions: each alone, a sum of them with weights that are not negative, their largest or
smallest, or otherwise."""


@dataclass(frozen=True)
class Pin:
    """Why a space may not change."""

    reason: str
    """What is not understood or may not change."""

    node: str
    """The graph node that caused it."""

    points: tuple[int, ...] = ()
    """The activations of the space that it touches."""


@dataclass(frozen=True)
class Segment:
    """A stretch of a channel axis that belongs to one space."""

    space: int
    """Index into `ChannelGraph.spaces`."""

    repeat: int
    """Consecutive entries per channel: 1, or H*W after a flatten."""

    point: int
    """The activation that stands here."""

    tap: int
    """The scale class of that activation."""

    offset: int
    """First entry of the axis that belongs to this segment."""

    length: int
    """Entries of the axis: the space's width times `repeat`."""


@dataclass(frozen=True)
class LinearMap:
    """A convolution or linear layer at one place of the forward pass."""

    name: str
    """The layer's name, such as `layer1.0.conv1`."""

    node: str
    """The graph node that calls it."""

    weight: str
    """Name of the weight tensor."""

    bias: str | None
    """Name of the bias tensor."""

    row_axis: int
    """Axis of the weight that holds output channels."""

    column_axis: int
    """Axis of the weight that holds input channels."""

    groups: int
    """Groups of a grouped convolution; 1 otherwise (depthwise layers are stages, not maps)."""

    rows: tuple[Segment, ...]
    """What the output axis is made of."""

    columns: tuple[Segment, ...] | None
    """What the input axis is made of; None when the input has fixed coordinates."""

    zero_padding: bool
    """Whether zeros are padded in, so that a constant input is not a constant output."""

    cropping: tuple[int, ...] | None
    """Spatial padding per side where the kernel could shrink with it; None where it cannot."""


@dataclass(frozen=True)
class Stage:
    """A per-channel function from points to a point of the same space."""

    kind: StageKind
    node: str
    space: int
    inputs: tuple[int, ...]
    output: int
    params: Mapping[str, str] = field(default_factory=dict)
    """Tensor names by role: weight, bias, mean, var."""

    axis: int = 0
    """The channel axis of those tensors."""

    offset: int = 0
    """First entry of that axis that belongs to this space."""

    repeat: int = 1
    """Entries per channel."""

    eps: float = 0.0
    """The norm's epsilon."""

    function: Callable[[torch.Tensor], torch.Tensor] | None = None
    """The elementwise function of an activation, for constants to pass through."""

    cropping: tuple[int, ...] | None = None
    """For a depthwise kernel as `LinearMap.cropping`."""

    keeps_constants: bool = True
    """Whether a channel that is constant over positions stays so."""

    reach: Reach = "pointwise"
    """Unless it is pointwise, an activation's function says no more than what becomes of constants."""

    ball: float = inf
    """The channels of one position together, as a vector, are no longer than this."""


@dataclass(frozen=True)
class Producer:
    """Rows of a map that make channels of a space."""

    map: int
    offset: int
    repeat: int
    point: int


@dataclass(frozen=True)
class Consumer:
    """Columns of a map that read channels of a space."""

    map: int
    offset: int
    repeat: int
    point: int
    tap: int


@dataclass(frozen=True)
class Space:
    """A set of channel axes that can only move together."""

    id: int
    name: str
    """Named after its first producer."""

    width: int
    groups: int
    """Equal blocks that no rewrite may cross (grouped convolutions, group norms); 1 otherwise."""

    pins: tuple[Pin, ...]
    producers: tuple[Producer, ...]
    consumers: tuple[Consumer, ...]
    stages: tuple[Stage, ...]
    """In execution order."""

    rigid: str | None = None
    """Why the number of channels must stay, though they may change places and scales; None: it need not."""

    peers: tuple[int, ...] = ()
    """Other spaces that must stay as wide as this one: experts of one tensor, layers of one recurrent module."""

    trading: bool = False
    """Whether these blocks may change places as wholes."""

    multiple: int = 1
    """The width must stay a multiple of this."""

    @property
    def pinned(self) -> str | None:
        """The reason why this space must stay, or None when it is free."""
        return f"{self.pins[0].reason} ({self.pins[0].node})" if self.pins else None


@dataclass(frozen=True, repr=False)
class ChannelGraph(Shown):
    """A model's channel spaces and the layers between them."""

    spaces: tuple[Space, ...]
    """In execution order of their first producer."""

    maps: tuple[LinearMap, ...]
    """In execution order."""

    taps: Mapping[int, int]
    """Point to tap."""

    fixed_taps: frozenset[int]
    """Taps through which no scale passes."""

    signed_taps: frozenset[int]
    """Taps that are not fixed and that no nonlinearity reads, so that negative scale passes too."""

    odd_taps: frozenset[int]
    """Fixed taps that only odd functions read, so that a change of sign passes."""

    aliases: Mapping[str, str]
    """Every tensor name to the first name of the same tensor."""

    method: Literal["fx", "recorded", "export"]
    """Which front end traced the model."""

    held: Mapping[str, Pin] = field(default_factory=dict)
    """Tensors that no channel goes along with, by first name: what reads them, so that they must stay as they are."""

    orders: Mapping[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    """By tensor and axis behind a channel shuffle: where in the model's tensor each entry stands. The graph's segments,
    and all who compute with it, see the entries side by side (`canon.graph.orders`)."""

    def _shown(self) -> Mapping[str, object]:
        return {"spaces": len(self.spaces), "free": len(self.free), "maps": len(self.maps), "method": self.method}

    @property
    def free(self) -> tuple[Space, ...]:
        """The spaces that may be rewritten in every way."""
        return tuple(space for space in self.spaces if not space.pins and space.rigid is None)

    @property
    def rigid(self) -> tuple[Space, ...]:
        """The spaces whose channels may change places and scales, but not their number."""
        return tuple(space for space in self.spaces if not space.pins and space.rigid is not None)

    @property
    def closed_taps(self) -> frozenset[int]:
        """Taps that neither scale nor sign passes."""
        return self.fixed_taps - self.odd_taps

    def with_rigid_pinned(self) -> ChannelGraph:
        """The same for whoever changes widths: spaces that keep theirs must stay as they are."""
        pinned = [replace(s, pins=(Pin(s.rigid, ""),)) if s.rigid and not s.pins else s for s in self.spaces]
        return replace(self, spaces=tuple(pinned)) if self.rigid else self

    def space_taps(self, space: Space) -> tuple[int, ...]:
        """The taps of a space, in execution order of their first point."""
        points = [p.point for p in space.producers]
        points += [stage.output for stage in space.stages]
        return tuple(dict.fromkeys(self.taps[point] for point in points))

    def space_named(self, name: str) -> Space:
        """The space with this name; KeyError when there is none."""
        for space in self.spaces:
            if space.name == name:
                return space
        raise KeyError(name)
