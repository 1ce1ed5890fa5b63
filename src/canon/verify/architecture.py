"""What two models must share before their channels can be compared: layers, wiring and widths."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from torch import Tensor

from canon.errors import VerificationError
from canon.graph import ChannelGraph, Segment


@dataclass(frozen=True)
class Difference:
    """A layer that has another shape than the reference's."""

    layer: str
    expected: tuple[int, ...]
    """Shape of the reference's weight."""

    got: tuple[int, ...]
    """Shape of the other model's weight."""

    def __str__(self) -> str:
        return f"shape {_times(self.got)} instead of {_times(self.expected)}"


@dataclass(frozen=True)
class Architecture:
    """Layers by name and shape, and how they are wired."""

    shapes: Mapping[str, tuple[int, ...]]
    """By layer, in execution order: the shape of its weight."""

    wiring: str
    """SHA-256 of everything else that a trace finds: spaces, taps, stages and pins."""

    @property
    def digest(self) -> str:
        """One SHA-256 for names, shapes and wiring."""
        return _digest([[name, *shape] for name, shape in self.shapes.items()] + [self.wiring])

    @staticmethod
    def of(graph: ChannelGraph, tensors: Mapping[str, Tensor]) -> Architecture:
        """The architecture of a traced model."""
        shapes = {linear.name: tuple(tensors[linear.weight].shape) for linear in graph.maps}
        for space in graph.spaces:
            for stage in space.stages:
                if stage.kind == "depthwise":
                    name = stage.params["weight"]
                    shapes[name.removesuffix(".weight")] = tuple(tensors[name].shape)
        return Architecture(shapes, _digest(_wiring(graph)))

    def differences(self, other: Architecture) -> tuple[Difference, ...]:
        """The layers of another model whose shapes are not these.

        Raises:
            VerificationError: The other model has other layers, or wires them in another way.
        """
        missing = [name for name in self.shapes if name not in other.shapes]
        surplus = [name for name in other.shapes if name not in self.shapes]
        if missing or surplus:
            what = f"lacks the layer '{missing[0]}'" if missing else f"has a layer '{surplus[0]}' of its own"
            near = get_close_matches(missing[0], surplus, n=1) if missing else []
            raise VerificationError(
                f"the models are of different architectures: the model {what}"
                f" ({len(missing)} missing, {len(surplus)} more than the reference has)",
                where=(missing or surplus)[0],
                hint=f"Is it called '{near[0]}' there?" if near else "Give the reference of this architecture",
            )
        found = tuple(
            Difference(name, shape, other.shapes[name])
            for name, shape in self.shapes.items()
            if other.shapes[name] != shape
        )
        if not found and self.wiring != other.wiring:
            raise VerificationError(
                "the models have the same layers but are wired in different ways",
                hint="Trace both with an example of one shape, and give the reference of this architecture",
            )
        return found


def _wiring(graph: ChannelGraph) -> list[object]:
    """Everything but names: a tensor is known by where it is first used, which also tells what is shared."""
    numbers: dict[str, int] = {}

    def number(tensor: str | None) -> int | None:
        return None if tensor is None else numbers.setdefault(tensor, len(numbers))

    maps = [
        [
            number(linear.weight),
            number(linear.bias),
            linear.groups,
            _segments(linear.rows),
            _segments(linear.columns or ()),
        ]
        for linear in graph.maps
    ]
    spaces = [
        [
            space.groups,
            bool(space.pins),
            [[p.map, p.offset, p.repeat, p.point] for p in space.producers],
            [[c.map, c.offset, c.repeat, c.point, c.tap] for c in space.consumers],
            [
                [
                    stage.kind,
                    list(stage.inputs),
                    stage.output,
                    [[role, number(name)] for role, name in sorted(stage.params.items())],
                    stage.offset,
                    stage.repeat,
                ]
                for stage in space.stages
            ],
        ]
        for space in graph.spaces
    ]
    shuffled = sorted([number(name), axis, list(order)] for (name, axis), order in graph.orders.items())
    taps = [sorted(graph.taps.items()), sorted(graph.fixed_taps), sorted(graph.signed_taps)]
    return [maps, spaces, *taps, *([shuffled] if shuffled else [])]


def _segments(segments: Sequence[Segment]) -> list[list[int]]:
    return [[s.space, s.repeat, s.point, s.tap, s.offset, s.length] for s in segments]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
