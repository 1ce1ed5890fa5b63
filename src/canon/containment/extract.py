"""The extracted model: the owner's layout, made of the suspect's numbers only.

Columns of copies are added up; rows are averaged over copies by what each of them carries; what matched nothing is left
out. All of it is one rewrite of the suspect's own model. Of the owner's nothing is used but order and scales, and where
a channel was not found there are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from canon.containment.matching import EXACT
from canon.containment.walk import Found
from canon.graph import ChannelGraph, LinearMap, Segment, Space
from canon.rewrite import SpaceRewrite, replace_tensors, rewrite_tensors
from canon.transforms import ChannelTransform
from canon.verify.side import movable


def extract(
    model: nn.Module, graph: ChannelGraph, tensors: Mapping[str, Tensor], found: Mapping[int, Found]
) -> nn.Module:
    """The owner's network as it stands in the suspect.

    Args:
        model: The suspect. It is not changed, and the result shares nothing with it.
        graph: Its channel graph.
        tensors: Its tensors.
        found: By space: which of its channels are the owner's.
    """
    rewrites, shares = {}, {}
    for space in graph.spaces:
        if movable(space):
            rewrites[space.id] = space_rewrite(space, found[space.id])
            if _differing_copies(found[space.id]):
                shares[space.id] = _shares(space, graph, tensors, found[space.id])
    with torch.no_grad():
        changed = rewrite_tensors(_Averaged(tensors, graph, found, rewrites, shares), graph, rewrites)
    return replace_tensors(model, changed)


def blank(graph: ChannelGraph, tensors: Mapping[str, Tensor], missing: Mapping[int, Tensor]) -> None:
    """Write zeros where channels were not found.

    Args:
        graph: Channel graph of a model that the caller owns; it is changed.
        tensors: Its tensors.
        missing: By space: whether each channel is missing.
    """
    with torch.no_grad():
        for space in graph.spaces:
            gone = missing.get(space.id)
            if gone is None or not bool(gone.any()):
                continue
            for producer in space.producers:
                linear = graph.maps[producer.map]
                for name, axis in ((linear.weight, linear.row_axis), (linear.bias, 0)):
                    if name is not None:
                        _zero(tensors[name], axis, producer.offset, producer.repeat, gone)
            for stage in space.stages:
                for role, name in stage.params.items():
                    axis = 0 if stage.kind != "shift" and role == "bias" else stage.axis
                    if role != "var":
                        _zero(tensors[name], axis, stage.offset, stage.repeat, gone)


def _zero(tensor: Tensor, axis: int, offset: int, repeat: int, gone: Tensor) -> None:
    index = torch.nonzero(gone.repeat_interleave(repeat)).flatten() + offset
    tensor.index_fill_(axis, index.to(tensor.device), 0.0)


def _rewrite(space: Space, found: Found) -> SpaceRewrite:
    accepted = found.accepted
    match, after = accepted.match, accepted.best.numel()
    lead = accepted.best.clamp(min=0)
    factors = found.settled
    ones = torch.ones(match.numel(), dtype=torch.float64)
    gains = {}
    for tap, factor in factors.items():
        gain = 1 / factor[lead]
        if not bool((gain == 1).all()):
            gains[tap] = gain
    return SpaceRewrite(
        before=space.width,
        source=lead,
        transform=ChannelTransform.merge(match, ones, after),
        gains=gains,
        transforms={tap: ChannelTransform.merge(match, factor, after) for tap, factor in factors.items()},
    )


def space_rewrite(space: Space, found: Found) -> SpaceRewrite:
    """What brings a space into the owner's layout: rows of mirror images where nothing else was found."""
    change = _rewrite(space, found)
    if not found.mirrored:
        return change
    used = found.mirror >= 0
    gains = {}
    for tap in {*change.gains, *found.mirror_gains}:
        gain, other = change.gain(tap), found.mirror_gains.get(tap)
        plain = torch.ones(used.numel(), dtype=torch.float64) if gain is None else gain
        gains[tap] = plain if other is None else torch.where(used, other, plain)
    return replace(change, source=torch.where(used, found.mirror, change.source), gains=gains)


def _differing_copies(found: Found) -> bool:
    """Whether some channel has several copies that are not the same up to rounding."""
    match = found.accepted.match
    copies = torch.bincount(match[match >= 0], minlength=1)
    several = (match >= 0) & (copies[match.clamp(min=0)] > 1)
    return bool(((1 - found.pairs.cosine)[several] > EXACT).any())


def _shares(space: Space, graph: ChannelGraph, tensors: Mapping[str, Tensor], found: Found) -> Tensor:
    """For every channel of the suspect the part of the owner's channel that it carries, by what reads it."""
    match = found.accepted.match
    carried = torch.zeros(space.width, dtype=torch.float64)
    for consumer in space.consumers:
        linear = graph.maps[consumer.map]
        norms = _column_norms(tensors[linear.weight], linear)
        mine = norms[consumer.offset : consumer.offset + space.width * consumer.repeat].view(space.width, -1)
        factor = found.factors.get(consumer.tap)
        size = torch.linalg.vector_norm(mine, dim=1)
        carried += size if factor is None else size * factor.abs()
    here = match >= 0
    total = torch.zeros(found.accepted.best.numel(), dtype=torch.float64)
    count = total.index_add(0, match[here], torch.ones_like(carried[here]))
    total.index_add_(0, match[here], carried[here])
    at = match.clamp(min=0)
    share = torch.where(total[at] > 0, carried / total[at].clamp(min=1e-300), 1 / count[at].clamp(min=1))
    return torch.where(here, share, 0.0)


def _column_norms(weight: Tensor, linear: LinearMap) -> Tensor:
    """Norm of every column of a layer, over rows and kernel."""
    moved = weight.detach().movedim((linear.row_axis, linear.column_axis), (0, 1))
    grouped = moved.reshape(linear.groups, moved.shape[0] // linear.groups, moved.shape[1], -1)
    norms = torch.linalg.vector_norm(grouped, dim=(1, 3), dtype=torch.promote_types(weight.dtype, torch.float32))
    flat: Tensor = norms.flatten().double().cpu()
    return flat


class _Averaged(Mapping[str, Tensor]):
    """The suspect's tensors, with the row that leads each channel's copies averaged over them. Made when asked for."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        graph: ChannelGraph,
        found: Mapping[int, Found],
        rewrites: Mapping[int, SpaceRewrite],
        shares: Mapping[int, Tensor],
    ) -> None:
        self.tensors, self.found, self.rewrites, self.shares = tensors, found, rewrites, shares
        self.rows: dict[str, tuple[tuple[Segment, ...], int]] = {}
        for linear in graph.maps:
            if any(segment.space in shares for segment in linear.rows):
                self.rows[linear.weight] = (linear.rows, linear.row_axis)
                if linear.bias is not None:
                    self.rows[linear.bias] = (linear.rows, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.tensors[name].detach()
        if name not in self.rows:
            return tensor
        segments, axis = self.rows[name]
        moved = tensor.movedim(axis, 0).clone()
        for segment in segments:
            if segment.space in self.shares:
                self._average(moved[segment.offset : segment.offset + segment.length], segment)
        result: Tensor = moved.movedim(0, axis)
        return result

    def _average(self, rows: Tensor, segment: Segment) -> None:
        match, share = self.found[segment.space].accepted.match, self.shares[segment.space]
        lead = self.rewrites[segment.space].source
        copies = torch.bincount(match[match >= 0], minlength=lead.numel())
        several = torch.nonzero((match >= 0) & (copies[match.clamp(min=0)] > 1)).flatten()
        factor = self.found[segment.space].factors.get(segment.tap)
        weight = share[several]
        if factor is not None:
            weight = weight * factor[lead[match[several]]] / factor[several]
        view = rows.view(match.numel(), -1)
        device, wide = rows.device, torch.promote_types(rows.dtype, torch.float32)
        target = torch.nonzero(copies > 1).flatten()
        place = torch.zeros_like(copies)
        place[target] = torch.arange(target.numel())
        total = torch.zeros(target.numel(), view.shape[1], dtype=wide, device=device)
        part = view[several.to(device)].to(wide) * weight.to(device, wide)[:, None]
        total.index_add_(0, place[match[several]].to(device), part)
        view[lead[target].to(device)] = total.to(rows.dtype)
