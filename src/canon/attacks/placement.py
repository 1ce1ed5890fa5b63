"""Where injected channels stand: anywhere."""

from __future__ import annotations

import torch

from canon.attacks.channels import Channels


def shuffle(channels: Channels, generator: torch.Generator) -> Channels:
    """A random order in which, where possible, no original channel keeps its old place."""
    order = torch.rand(channels.kind.shape, generator=generator).argsort(1)
    origin = channels.origin.gather(1, order)
    old = torch.arange(channels.before).view(channels.groups, -1)
    stuck = origin[:, : old.shape[1]] == old
    # Those that kept their place change places in a ring: each goes to where another one stood.
    for group in torch.nonzero(stuck.any(1)).flatten().tolist():
        ring = torch.nonzero(stuck[group]).flatten()
        if ring.numel() == 1:
            others = torch.nonzero(origin[group] != origin[group, ring]).flatten()
            pick = torch.randint(max(1, others.numel()), (1,), generator=generator)
            ring = torch.cat([ring, others[pick] if others.numel() else others])
        order[group, ring] = order[group, ring.roll(1)]
    return channels.reorder(order)


def interleave(channels: Channels, count: int, generator: torch.Generator) -> Channels:
    """Put the last `count` channels of each block anywhere between the others, which keep their order.

    At least one comes before half of the others, so that most of these stand at another index than before.

    >>> mixed = interleave(Channels.of(4, 1).split(3, 2), 2, torch.Generator().manual_seed(0))
    >>> [k for k in mixed.origin[0].tolist() if k < 3]
    [0, 1, 2]
    """
    if not count:
        return channels
    others = channels.block - count
    places = torch.rand(channels.kind.shape, generator=generator).argsort(1)[:, :count]
    early = torch.randint(others // 2 + 1, (channels.groups,), generator=generator)
    late = places.min(1).values > others // 2
    places[late, 0] = early[late]
    added = torch.zeros_like(channels.kind, dtype=torch.bool).scatter_(1, places, True)
    order = torch.where(added, others + added.cumsum(1) - 1, (~added).cumsum(1) - 1)
    return channels.reorder(order)
