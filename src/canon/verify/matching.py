"""One-to-one matching of channels by what they compute.

Channels are rows of a feature matrix on each side. `nearest` pairs what agrees by sorting a random projection, which
is near-linear, and keeps a pair only if no other channel of the reference can be nearer; what is left over it holds
against the whole reference once, and pairs what is nearest by far; the rest it pairs as `greedy` does. `greedy` takes
the smallest remaining distance again and again, as the paper does. `optimal` minimises the sum of all distances.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from canon.errors import VerificationError

Matching = Literal["nearest", "greedy", "optimal"]
MATCHINGS: Final[tuple[str, ...]] = get_args(Matching)

CHUNK: Final = 512
"""Rows of a distance matrix made at a time where only its minima are kept."""

_CLEARLY: Final = 2
"""How many times as far away the next channel of the reference must be for a pair to be beyond doubt."""

_FORBIDDEN: Final = 1e12
"""Distance of channels that must not be paired."""


def check_matching(name: str) -> None:
    """Refuse a method that does not exist."""
    if name not in MATCHINGS:
        raise VerificationError(f"unknown matching '{name}'", hint=f"Choose one of: {', '.join(MATCHINGS)}")


class Matched(NamedTuple):
    """Channels with those of the reference that they are."""

    channel: Tensor
    """Of the reference, int64."""

    other: Tensor
    """No other channel of the reference with the same label is nearer than this; 0 where nothing is known."""


def match(features: Tensor, reference: Tensor, label: Tensor, reference_label: Tensor, matching: Matching) -> Matched:
    """For every channel the channel of the reference that it is.

    Args:
        features: `channels x numbers`, float64.
        reference: The same of the reference.
        label: Channels are matched within equal labels; every label is equally frequent on both sides.
        reference_label: The same of the reference.
        matching: How.
    """
    width = features.shape[0]
    found = torch.full((width,), -1, dtype=torch.int64)
    other = torch.zeros(width, dtype=features.dtype)
    if matching == "nearest":
        _match_sorted(found, other, features, reference, label, reference_label)
        _match_clear(found, other, features, reference, label, reference_label)
    rest = torch.nonzero(found < 0).flatten()
    if rest.numel() == 0:
        return Matched(found, other)
    taken = torch.zeros(width, dtype=torch.bool)
    taken[found[found >= 0]] = True
    free = torch.nonzero(~taken).flatten()
    distances = torch.cdist(features[rest], reference[free])
    distances[label[rest][:, None] != reference_label[free]] = _FORBIDDEN
    pair = _optimal(distances) if matching == "optimal" else _greedy(distances)
    found[rest] = free[pair]
    return Matched(found, other)


def traded(features: Tensor, reference: Tensor, label: Tensor, reference_label: Tensor) -> Tensor:
    """Labels of blocks that may have changed places: those of the blocks of the reference that they are most like.

    Args:
        features: `channels x numbers`, float64.
        reference: The same of the reference.
        label: The block of each channel, from 0.
        reference_label: The same of the reference.
    """
    blocks = int(reference_label.max()) + 1
    nearest = torch.cat([torch.cdist(part, reference).argmin(dim=1) for part in features.split(CHUNK)])
    votes = torch.zeros(blocks, blocks, dtype=torch.int64)
    votes.index_put_((label, reference_label[nearest]), torch.ones_like(label), accumulate=True)
    return torch.from_numpy(linear_sum_assignment(votes.numpy(), maximize=True)[1])[label]


def distance_to_nearest(features: Tensor, reference: Tensor) -> Tensor:
    """For every channel the distance to the reference's nearest channel."""
    parts = [torch.cdist(part, reference).amin(dim=1) for part in features.split(CHUNK)]
    return torch.cat(parts) if parts else features.new_zeros(0)


def nearest_other(
    features: Tensor, label: Tensor, reference: Tensor, reference_label: Tensor, excluded: Tensor
) -> Tensor:
    """For every channel the distance to the reference's nearest channel with its label, one excluded.

    Args:
        features: `channels x numbers`, float64.
        label: Of the channels.
        reference: `channels x numbers`, of the reference.
        reference_label: Of the reference's channels.
        excluded: For every channel the reference's channel that does not count: its match, or itself.
    """
    parts = []
    for stretch, squares in _squares(features, label, reference, reference_label):
        parts.append(squares.scatter_(1, excluded[stretch, None], float("inf")).amin(dim=1))
    return _distances(torch.cat(parts), features)


def _squares(
    features: Tensor, label: Tensor, reference: Tensor, reference_label: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Squares of distances, but for the size of the channel itself, which changes no order; some rows at a time."""
    apart = bool((reference_label != reference_label[0]).any())
    sizes, columns = reference.square().sum(dim=1), reference.T
    for start in range(0, features.shape[0], CHUNK):
        stretch = slice(start, start + CHUNK)
        squares = torch.addmm(sizes, features[stretch], columns, alpha=-2)
        if apart:
            squares.masked_fill_(label[stretch, None] != reference_label, float("inf"))
        yield stretch, squares


def _distances(squares: Tensor, features: Tensor) -> Tensor:
    return squares.add_(features.square().sum(dim=1)).clamp_(min=0).sqrt_()


def _match_sorted(
    found: Tensor, other: Tensor, features: Tensor, reference: Tensor, label: Tensor, reference_label: Tensor
) -> None:
    """Pair what stands at the same rank of a random projection, where it is certainly nearest."""
    direction = _direction(features.shape[1])
    projected = reference @ direction
    ours, theirs = _order(features @ direction, label), _order(projected, reference_label)
    gap = features.index_select(0, ours).sub_(reference.index_select(0, theirs))
    distance = torch.linalg.vector_norm(gap, dim=1)
    # By the triangle inequality nothing else is nearer than twice this distance, if the next is three times as far.
    apart = _steps(projected[theirs], reference_label[theirs])
    sure = (label[ours] == reference_label[theirs]) & ((1 + _CLEARLY) * distance <= apart)
    found[ours[sure]] = theirs[sure]
    other[ours[sure]] = (apart - distance)[sure]


def _match_clear(
    found: Tensor, other: Tensor, features: Tensor, reference: Tensor, label: Tensor, reference_label: Tensor
) -> None:
    """Pair what is left with the nearest of the whole reference, where the next is far and nobody else wants it."""
    left = torch.nonzero(found < 0).flatten()
    if not left.numel():
        return
    ours, chosen, next_one = features[left], torch.empty_like(left), torch.empty(left.numel(), dtype=features.dtype)
    for stretch, squares in _squares(ours, label[left], reference, reference_label):
        chosen[stretch] = squares.argmin(dim=1)
        next_one[stretch] = squares.scatter_(1, chosen[stretch, None], float("inf")).amin(dim=1)
    next_one = _distances(next_one, ours)
    distance = torch.linalg.vector_norm(ours - reference[chosen], dim=1)
    wanted = torch.bincount(torch.cat([chosen, found[found >= 0]]), minlength=reference.shape[0])
    clear = (wanted[chosen] == 1) & (_CLEARLY * distance <= next_one)
    found[left[clear]], other[left[clear]] = chosen[clear], next_one[clear]


@lru_cache(maxsize=256)
def _direction(numbers: int) -> Tensor:
    """A random unit vector."""
    drawn = torch.randn(numbers, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return drawn.div_(max(float(drawn.norm()), 1e-300))


def _steps(ordered: Tensor, label: Tensor) -> Tensor:
    """How far each of some sorted numbers is from the next one of its label: no two channels are nearer than that."""
    steps = torch.full((ordered.numel() + 1,), float("inf"), dtype=torch.float64)
    steps[1:-1] = torch.where(label[1:] == label[:-1], ordered[1:] - ordered[:-1], float("inf"))
    return torch.minimum(steps[1:], steps[:-1])


def _order(projected: Tensor, label: Tensor) -> Tensor:
    return torch.from_numpy(np.lexsort((projected.numpy(), label.numpy())))


def _greedy(distances: Tensor) -> Tensor:
    """Smallest distance first. Pairs that are nearest to each other are taken together, which comes to the same."""
    count = distances.shape[0]
    found = torch.full((count,), -1, dtype=torch.int64)
    rows = columns = torch.arange(count)
    left = distances
    while rows.numel():
        best, column = left.min(dim=1)
        mutual = left.min(dim=0).indices[column] == torch.arange(rows.numel())
        if int(mutual.sum()) * 64 < rows.numel() and not bool((best[mutual] < best.median()).any()):
            # Many equal distances: any order is as good, and one pair at a time would take for ever.
            found[rows] = columns[_optimal(left)]
            break
        found[rows[mutual]] = columns[column[mutual]]
        keep = torch.ones(columns.numel(), dtype=torch.bool)
        keep[column[mutual]] = False
        left = left[~mutual][:, keep]
        rows, columns = rows[~mutual], columns[keep]
    return found


def _optimal(distances: Tensor) -> Tensor:
    _, columns = linear_sum_assignment(distances.numpy())
    return torch.from_numpy(columns).long()
