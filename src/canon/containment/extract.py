"""The extracted model: the owner's layout, made of the suspect's numbers only.

Columns of copies are added up; rows are averaged over copies by what each of them carries; what matched nothing is left
out. All of it is one rewrite of the suspect's own model. Of the owner's nothing is used but order and scales, and where
a channel was not found there are zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from canon.containment.found import Found
from canon.containment.matching import EXACT
from canon.describe.sketch import step_of
from canon.graph import ChannelGraph, LinearMap, Space
from canon.rewrite import SpaceRewrite, replace_tensors, rewrite_tensors
from canon.rewrite.axes import by_row, parameter_axis
from canon.transforms import ChannelTransform, entries
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
    rewrites = {}
    for space in graph.spaces:
        if movable(space):
            change = space_rewrite(space, found[space.id])
            if _differing_copies(found[space.id]):
                change = _averaged(
                    change, space, graph, found[space.id], _shares(space, graph, tensors, found[space.id])
                )
            rewrites[space.id] = change
    with torch.no_grad():
        changed = rewrite_tensors(tensors, graph, rewrites)
    return replace_tensors(model, changed, graph.orders)


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
                    if role != "var":
                        _zero(tensors[name], parameter_axis(stage, role), stage.offset, stage.repeat, gone)


def _zero(tensor: Tensor, axis: int, offset: int, repeat: int, gone: Tensor) -> None:
    index = entries(torch.nonzero(gone).flatten(), repeat, offset)
    tensor.index_fill_(axis, index.to(tensor.device), 0.0)


def space_rewrite(space: Space, found: Found) -> SpaceRewrite:
    """What brings a space into the owner's layout: rows of mirror images where nothing else was found."""
    accepted, factors = found.accepted, found.settled
    match, source = accepted.match, accepted.best.clamp(min=0)
    after, ones = source.numel(), torch.ones(space.width, dtype=torch.float64)
    gains = {tap: 1 / factor[source] for tap, factor in factors.items()}
    gains = {tap: gain for tap, gain in gains.items() if not bool((gain == 1).all())}
    if found.mirrored:
        used = found.mirror >= 0
        source = torch.where(used, found.mirror, source)
        plain = torch.ones(after, dtype=torch.float64)
        for tap, gain in found.mirror_gains.items():
            gains[tap] = torch.where(used, gain, gains.get(tap, plain))
    return SpaceRewrite(
        before=space.width,
        source=source,
        transform=ChannelTransform.merge(match, ones, after),
        gains=gains,
        factors=factors,
    )


def _averaged(change: SpaceRewrite, space: Space, graph: ChannelGraph, found: Found, share: Tensor) -> SpaceRewrite:
    """With rows of copies averaged by the part of the owner's channel that each of them carries."""
    match, factors, ones = found.accepted.match, found.settled, torch.ones(space.width, dtype=torch.float64)
    several = torch.bincount(match[match >= 0], minlength=change.after) > 1
    copies = torch.nonzero((match >= 0) & several[match.clamp(min=0)]).flatten()
    alone = torch.nonzero(~several).flatten()
    rows = {}
    for tap in {graph.taps[producer.point] for producer in space.producers}:
        rows[tap] = ChannelTransform.of(
            space.width,
            change.after,
            torch.cat([change.source[alone], copies]),
            torch.cat([alone, match[copies]]),
            torch.cat([change.rows_at(tap).values[alone], share[copies] / factors.get(tap, ones)[copies]]),
        )
    return replace(change, rows=rows)


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
        norms = column_norms(tensors[linear.weight], linear)
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


def column_norms(weight: Tensor, linear: LinearMap) -> Tensor:
    """Norm of every column of a layer, over rows and kernel."""
    moved = by_row(weight, linear)
    grouped = moved.reshape(linear.groups, moved.shape[0] // linear.groups, moved.shape[1], -1)
    wide, step = torch.promote_types(weight.dtype, torch.float32), step_of(grouped.flatten(2))
    total = torch.zeros(linear.groups, moved.shape[1], dtype=torch.float64, device=weight.device)
    for piece in grouped.split(step, dim=1):
        total += piece.to(wide).square().sum(dim=(1, 3))
    flat: Tensor = total.sqrt().flatten().cpu()
    return flat
