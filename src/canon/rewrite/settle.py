"""Offsets where layers alone read them: `W·(y + b) + c` is `W·y + (W·b + c)`, so what is compared are the sums.

A norm's offset may stand in the biases of the layers behind it, or the other way around, and nobody can tell whose it
was. Settled tensors have zeros wherever an offset can go on to all that reads it; they compute the same as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from canon.graph import ChannelGraph, Stage
from canon.rewrite.fold import readers_of, uses_of
from canon.rewrite.offsets import offsets, takers
from canon.rewrite.spec import SpaceRewrite

OFFSETS: Final = ("norm", "shift", "depthwise")
"""Kinds of stages that add a tensor of their own."""


@dataclass(frozen=True)
class _Place:
    """Where a stretch of a tensor is added to a space."""

    name: str
    space: int
    point: int
    start: int
    repeat: int
    norm: Stage | None = None
    """The norm whose offset it is: that holds its mean as well."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that the offset is made of, and that are zero without it."""
        return (self.name,) if self.norm is None else (self.name, self.norm.params["mean"])

    def offset(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """All entries of the offset."""
        found = tensors[self.name].detach().double().flatten()
        if self.norm is not None:
            told = {role: tensors[name].detach().double() for role, name in self.norm.params.items()}
            found = found - told["weight"] * told["mean"] / (told["var"] + self.norm.eps).sqrt()
        return found.cpu()


def settled(tensors: Mapping[str, Tensor], graph: ChannelGraph) -> Mapping[str, Tensor]:
    """A model's tensors with offsets in what reads them; nothing given is modified."""
    free = _free(graph)
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for _ in graph.maps:  # what a layer takes up may go on to the next
            now = {**tensors, **found} if found else tensors
            moved = [places for places in free if any(bool(now[name].any()) for name in places[0].names)]
            if not moved:
                break
            found |= _moved(now, graph, moved)
    return {**tensors, **found} if found else tensors


def _moved(tensors: Mapping[str, Tensor], graph: ChannelGraph, moved: Sequence[Sequence[_Place]]) -> dict[str, Tensor]:
    """Tensors that change when these offsets go on by one layer."""
    constants: dict[int, dict[int, Tensor]] = defaultdict(dict)
    found: dict[str, Tensor] = {}
    for places in moved:
        found |= {name: torch.zeros_like(tensors[name]) for name in places[0].names}
        offset = places[0].offset(tensors)
        for place in places:
            width, known = graph.spaces[place.space].width, constants[place.space]
            here = offset[place.start : place.start + width]
            known[place.point] = known[place.point] + here if place.point in known else here
    rewrites = {
        space: replace(SpaceRewrite.scaling(graph.spaces[space].width, {}), constants=known)
        for space, known in constants.items()
    }
    added = offsets({**tensors, **found}, graph, rewrites)
    found |= added.means
    for index, offset in added.layers.items():
        bias = graph.maps[index].bias
        assert bias is not None, "only layers with a bias take up an offset in it"
        before = found.get(bias, tensors[bias]).detach()
        found[bias] = before.double() + offset.to(before.device)
    return found


def _free(graph: ChannelGraph) -> list[list[_Place]]:
    """Offsets that can go on to all that reads them, each with all of its places."""
    readers, uses, taken = readers_of(graph), uses_of(graph), takers(graph)
    takes: dict[str, bool] = {}
    for index, linear in enumerate(graph.maps):
        here = taken[index] is not None and not linear.zero_padding
        takes[linear.node] = takes.get(linear.node, True) and here

    def passes(place: _Place) -> bool:
        read = readers[place.point]
        once = all(uses[name] == 1 for name in place.names)
        return once and place.repeat == 1 and bool(read) and all(takes.get(node, False) for node in read)

    found: dict[str, list[_Place]] = defaultdict(list)
    for place in _places(graph):
        found[place.name].append(place)
    return [places for places in found.values() if all(map(passes, places))]


def _places(graph: ChannelGraph) -> Iterator[_Place]:
    for linear in graph.maps:
        for segment in linear.rows if linear.bias is not None else ():
            yield _Place(str(linear.bias), segment.space, segment.point, segment.offset, segment.repeat)
    for space in graph.spaces:
        for stage in space.stages:
            bare = stage.kind == "norm" and "weight" not in stage.params
            if stage.kind in OFFSETS and "bias" in stage.params and not bare:
                # A shift may be another one at each position.
                repeat = stage.repeat if stage.kind != "shift" or stage.keeps_constants else 0
                norm = stage if stage.kind == "norm" else None
                yield _Place(stage.params["bias"], space.id, stage.output, stage.offset, repeat, norm)
