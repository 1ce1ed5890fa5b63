"""Mirror images: channels `f(−u)` of the suspect where the owner has `f(u)`.

Whoever replaces a channel by others that together give it needs its row somewhere. Where `f(u)` itself is nowhere, a
row that agrees with the owner's in everything but the sign is no accident, by the same measure as any other. Where the
odd part of `f` is a line, as of ReLU, GELU and SiLU, `f(u) = f(−u) + k·u`: what reads the image reads the channel, and
the others only give `k·u`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from canon.containment.matching import CHUNK, COPIES, EXACT, LEAST, NEARER, Accepted, Pairs
from canon.containment.yardstick import Yardstick

TURNED: Final = 0.2
"""By how much two channels must be more alike with some signs turned than they are as they stand."""


def with_images(
    yardstick: Yardstick, features: Tensor, labels: tuple[Tensor, Tensor], bar: float, pairs: Pairs, accepted: Accepted
) -> tuple[Pairs, Accepted, Tensor]:
    """What was accepted, with mirror images of channels that were not found; and for every channel its image, or -1.

    Args:
        yardstick: The owner's channels.
        features: The suspect's.
        labels: Blocks of the suspect's channels and of the owner's.
        bar: Cosine beyond what chance gives.
        pairs: The match as it stands.
        accepted: What is accepted of it.
    """
    channels = accepted.best.numel()
    free = torch.nonzero(accepted.match < 0).flatten()
    mirror = torch.full((channels,), -1)
    if not free.numel() or bool(accepted.distinct.all()):
        return pairs, accepted, mirror
    best, at = torch.full((channels,), -1.0, dtype=torch.float64), torch.zeros(channels, dtype=torch.int64)
    rows = []
    for start in range(0, free.numel(), CHUNK):
        some = free[start : start + CHUNK]
        plain, turned = yardstick.with_signs(features[some])
        cosine = torch.where(turned - plain >= TURNED, turned, -1.0).double()
        cosine.masked_fill_(labels[0][some, None] != labels[1], -1.0)
        rows.append(cosine.max(dim=1))
        here, place = cosine.max(dim=0)
        at = torch.where(here > best, place + start, at)
        best = torch.maximum(best, here)
    own, nearest = (torch.cat(part) for part in zip(*rows, strict=True))
    # What was found may be a part of what replaced the channel; then its mirror image is nearer by far.
    nearer = 1 - best <= NEARER * accepted.distance
    taken = ~yardstick.still & nearer & (best >= max(LEAST, bar)) & (nearest[at] == torch.arange(channels))
    if not bool(taken.any()):
        return pairs, accepted, mirror
    mirror = torch.where(taken, free[at], -1)
    # An image may be split as any channel may be: all that are as near stand for it.
    near = taken[nearest] & (1 - own <= (COPIES * (1 - best[nearest])).clamp(min=EXACT))
    image, owner = free[near], nearest[near]
    index, likeness, match = pairs.index.clone(), pairs.cosine.clone(), accepted.match.clone()
    index[image], likeness[image] = owner, own[near]
    match[(match >= 0) & taken[match.clamp(min=0)]] = -1
    match[image] = owner
    accepted = replace(
        accepted,
        match=match,
        best=torch.where(taken, mirror, accepted.best),
        found=accepted.found | taken,
        distinct=accepted.distinct | taken,
        distance=torch.where(taken, 1 - best, accepted.distance),
    )
    return replace(pairs, index=index, cosine=likeness), accepted, mirror
