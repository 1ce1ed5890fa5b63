"""Mirror images: channels `f(−u)` of the suspect where the owner has `f(u)`.

Whoever replaces a channel by others that together give it needs its row somewhere. Where `f(u)` itself is nowhere, a
row that agrees with the owner's in everything but the sign is no accident, by the same measure as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from canon.containment.matching import LEAST, NEARER, Accepted
from canon.containment.walk import Found, Walk
from canon.graph import Space
from canon.verify.side import blocks, movable


def mirror_images(walk: Walk) -> dict[int, Found]:
    """What a walk found, with mirror images of channels that were not found."""
    return {
        index: _with_mirrors(walk, walk.graph.spaces[index], found)
        if movable(walk.graph.spaces[index]) and bool((~found.accepted.distinct & ~found.silent).any())
        else found
        for index, found in walk.found.items()
    }


def _with_mirrors(walk: Walk, space: Space, found: Found) -> Found:
    step = walk.portrait.steps[walk.final[space.id]]
    told = walk.side.describe(space, step.maps)
    free = torch.nonzero(found.accepted.match < 0).flatten()
    if not free.numel():
        return found
    features = walk.features(step, space, told)[free]
    cosine = (found.yardstick.measure(features, flipped=True) @ found.yardstick.owner.T).double()
    channels = cosine.shape[1]
    own = torch.arange(channels) // (channels // space.groups)
    cosine.masked_fill_(blocks(space)[free, None] != own, -1.0)
    nearest = cosine.argmax(dim=1)
    best, at = cosine.max(dim=0)
    # What was found may be a part of what replaced the channel; then its mirror image is nearer by far.
    nearer = 1 - best <= NEARER * found.accepted.distance
    taken = ~found.silent & nearer & (best >= max(LEAST, found.bar)) & (nearest[at] == torch.arange(channels))
    mirror = torch.where(taken, free[at], -1)
    scales, image = walk.scales[space.id], mirror.clamp(min=0)
    gains: dict[int, Tensor] = {}
    for tap in scales.keys() & told.scales.keys():
        mine, yours = told.scales[tap][image], scales[tap]
        usable = taken & (mine != 0) & (yours != 0)
        gains[tap] = torch.where(usable, -yours / torch.where(usable, mine, 1.0), 1.0)
    return replace(found, accepted=_without(found.accepted, taken), mirror=mirror, mirror_gains=gains)


def _without(accepted: Accepted, gone: Tensor) -> Accepted:
    """What was accepted, but for some channels of the owner's."""
    match = accepted.match
    lost = (match >= 0) & gone[match.clamp(min=0)]
    return replace(
        accepted,
        match=match.masked_fill(lost, -1),
        best=accepted.best.masked_fill(gone, -1),
        found=accepted.found & ~gone,
        distinct=accepted.distinct & ~gone,
        distance=accepted.distance.masked_fill(gone, 1.0),
    )


def with_images(found: Mapping[int, Found]) -> dict[int, Found]:
    """The same, with mirror images counted as found: rows are theirs, and columns were refitted to them."""
    changed = {}
    for index, item in found.items():
        if item.mirrored:
            image = item.mirror >= 0
            accepted = item.accepted
            accepted = replace(accepted, found=accepted.found | image, distinct=accepted.distinct | image)
            item = replace(item, accepted=accepted)
        changed[index] = item
    return changed
