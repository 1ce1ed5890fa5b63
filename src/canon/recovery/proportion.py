"""Which channels do the same up to a factor, judged by their activations alone.

State bits put channels into buckets; within a bucket proportional summaries link them; connected components are the
candidates. A bucket is compared pair by pair, `O(|b|² T)`, one block of rows at a time; pairs that are connected
already are left out, since in a nearly constant layer all of them would be close.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

BLOCK = 64
"""Rows of a bucket that are compared at a time; what they connect is not compared again."""


@dataclass(frozen=True)
class Limits:
    """When summaries count as active and as proportional."""

    epsilon: float
    """Summaries above this part of the channel's largest count."""

    t_min: int
    """How many must count."""

    tau: float
    """Largest relative error of proportional channels."""

    active_ratio: tuple[float, float]
    """Channels active on a smaller or larger share of the probes are kept out."""


def candidates(points: list[Tensor], limits: Limits) -> Tensor:
    """A component for every channel: the smallest channel that it is linked to. Channels that the gate keeps out, and
    those that resemble none, are alone.

    Args:
        points: Summaries `width x probes`, one tensor per point at which the space is read.
        limits: What counts as proportional.
    """
    width = points[0].shape[0]
    active = torch.cat([u > 0 for u in points], dim=1)
    low, high = limits.active_ratio
    ratio = active.double().mean(dim=1)
    let_in = (ratio >= low) & (ratio <= high)
    found = torch.arange(width)
    for bucket in _buckets(active, let_in):
        found[bucket] = bucket[_connect([u[bucket] for u in points], limits)]
    return found


def components(width: int, a: Tensor, b: Tensor) -> Tensor:
    """The smallest channel that each one is connected to by links from `a[i]` to `b[i]`."""
    links = coo_array((np.ones(a.numel(), dtype=np.int8), (a.numpy(), b.numpy())), shape=(width, width))
    _, found = connected_components(links, directed=False)
    component = torch.from_numpy(found).long()
    smallest = torch.full((width,), width, dtype=torch.int64)
    smallest.scatter_reduce_(0, component, torch.arange(width), "amin")
    return smallest[component]


def _buckets(active: Tensor, let_in: Tensor) -> Iterator[Tensor]:
    """Channels with the same packed state bits."""
    packed = np.packbits(active.numpy(), axis=1)
    by_signature: dict[bytes, list[int]] = {}
    for channel in torch.nonzero(let_in).flatten().tolist():
        by_signature.setdefault(packed[channel].tobytes(), []).append(channel)
    for channels in by_signature.values():
        if len(channels) > 1:
            yield torch.tensor(channels)


def _connect(points: list[Tensor], limits: Limits) -> Tensor:
    """For each channel of a bucket the first one that it is connected to by proportional pairs."""
    # Points at which the whole bucket is off say nothing.
    points = [u for u in points if bool((u > 0).any())]
    enough = torch.stack([_valid(u, limits.epsilon).sum(dim=1) >= limits.t_min for u in points]).all(dim=0)
    unit = [u / u.norm(dim=1, keepdim=True).clamp(min=1e-300) for u in points]
    width = points[0].shape[0]
    links: list[tuple[Tensor, Tensor]] = []
    # Whatever the factor, the relative error is no less than the sine of the angle between two channels.
    near = (1 - limits.tau**2) ** 0.5 - 1e-12
    connected = torch.arange(width)
    for start in range(0, width, BLOCK):
        rows = torch.arange(start, min(start + BLOCK, width))
        close = enough[rows][:, None] & enough[None, :] & (rows[:, None] < torch.arange(width)[None, :])
        close &= connected[rows][:, None] != connected[None, :]
        for u in unit:
            close &= u[rows] @ u.T >= near
        a, b = close.nonzero(as_tuple=True)
        a = a + start
        good = torch.ones_like(a, dtype=torch.bool)
        for u in points:
            good &= relative_error(u, a, b, median_ratio(u, a, b, limits.epsilon)) <= limits.tau
        links.append((a[good], b[good]))
        connected = components(width, torch.cat([x for x, _ in links]), torch.cat([x for _, x in links]))
    return connected


def _valid(u: Tensor, epsilon: float) -> Tensor:
    """Which probes count for a channel: those with a summary above ε, relative to its largest."""
    return u > epsilon * u.amax(dim=1, keepdim=True)


def median_ratio(u: Tensor, a: Tensor, b: Tensor, epsilon: float) -> Tensor:
    """`α` with `u[b] ≈ α·u[a]`: the median over the probes that count for channel `a`; NaN without any."""
    valid = _valid(u, epsilon)[a]
    ratio = torch.where(valid, u[b] / torch.where(valid, u[a], 1.0), float("nan"))
    return ratio.nanmedian(dim=1).values


def relative_error(u: Tensor, a: Tensor, b: Tensor, factor: Tensor) -> Tensor:
    """`‖u[b] − α·u[a]‖ / max(‖u[b]‖, ‖α·u[a]‖)`, the same with the two exchanged; infinite where nothing is known."""
    scaled = factor[:, None] * u[a]
    size = torch.maximum(u[b].norm(dim=1), scaled.norm(dim=1))
    error = (u[b] - scaled).norm(dim=1) / size
    return torch.where(error.isnan(), float("inf"), error)
