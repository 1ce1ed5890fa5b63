"""Channels that are sums of others: between layers without a nonlinearity any basis serves, also one that is too wide.

Copies of negative sign are the simplest kind. A ReLU whose input is never negative lets such sums pass as well. A
space that is wider than what flows into it was made so, and stays.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from scipy.linalg import qr
from torch import Tensor

from canon.describe import Array
from canon.describe.arrays import norm
from canon.graph import Space
from canon.recovery.facts import Facts, Subject
from canon.recovery.facts.forms import Forms
from canon.recovery.proposal import Proposal, SpaceChange, add_up, scale_rows, space_by_space
from canon.transforms import ChannelTransform

CLOSE: Final = 1e-5
"""How far a row may be from a sum of others where there are nearly as many rows as numbers in each."""


def basis(subject: Subject, facts: Facts) -> Proposal | None:
    """As many channels as are linearly independent; readers take the others from them."""
    spaces = [space for space in reversed(subject.narrowing) if space.groups == 1 and space.width > 1]
    return space_by_space(subject, spaces, lambda now, space: _reduced(now, facts, space))


def _reduced(subject: Subject, facts: Facts, space: Space) -> SpaceChange | None:
    bounded = facts.ranges if facts.ranges.special(space) else None
    bent = {s.output for s in space.stages if s.kind == "activation" and s.reach == "pointwise"}
    if bounded is None and any(consumer.point in bent for consumer in space.consumers):
        return None
    forms = Forms(subject, space, facts.parameters, bounded)
    seen = {c.point: forms.at[c.point] for c in space.consumers if c.point in forms.at}
    if len(seen) < len({c.point for c in space.consumers}) or any(form.bend is not None for form in seen.values()):
        return None
    members = np.flatnonzero(np.logical_and.reduce([form.valid for form in seen.values()]))
    # Where channels are independent at one point, all is said.
    fewest = min(seen.values(), key=lambda form: len(form.lines))
    if members.size < 2 or _apart(forms.gram(fewest, members), subject.tolerance.zero):
        return None
    vectors = {point: forms.vectors(form)[members] for point, form in seen.items()}
    moving = np.logical_or.reduce([lines[:, :-1].any(axis=1) for lines in vectors.values()])
    members, vectors = members[moving], {point: lines[moving] for point, lines in vectors.items()}
    for lines in (slice(-1), slice(None)):  # sums up to a constant; where nothing gives that, sums of shifts too
        found = _sums(subject, space, members, vectors, lines)
        if found is not None:
            break
    else:
        return None
    gone, transforms, off = found
    tensors = scale_rows(subject, space, gone, 0.0)
    moved = {consumer.tap: transforms[consumer.point] for consumer in space.consumers}
    added, noise = add_up(subject.with_tensors(tensors), space, moved, off)
    return SpaceChange(space.id, gone, {**tensors, **added}, noise=noise)


def _sums(
    subject: Subject, space: Space, members: Array, vectors: dict[int, Array], lines: slice
) -> tuple[Tensor, dict[int, ChannelTransform], float] | None:
    """Channels that are sums of others, by point how, and how far from these they are; None: there are none.

    Args:
        subject: What is looked at.
        space: One of its spaces.
        members: The channels that may be sums.
        vectors: By point: these as numbers, their shifts last.
        lines: Which of the numbers count.
    """
    together = np.concatenate([rows[:, lines] for rows in vectors.values()], axis=1)
    size = norm(together)
    if not size.size or not size.all():
        return None  # what is zero goes elsewhere
    tolerance = _tolerance(subject, together)
    kept = independent(together / size[:, None], tolerance)
    numbers = np.count_nonzero(next(iter(vectors.values()))[:, lines].any(axis=0))
    if kept.size in (0, members.size) or kept.size >= numbers:
        return None
    gone = np.setdiff1d(np.arange(members.size), kept)
    level = np.array([np.abs(rows[gone, -1]) for rows in vectors.values()]).min(axis=0)
    shift, found, off = int(level.argmax()), {}, 0.0  # a channel without its row gives what shifts need
    for point, rows in vectors.items():
        coefficients = np.linalg.lstsq(rows[kept][:, lines].T, rows[gone][:, lines].T, rcond=None)[0].T
        left = rows[gone] - coefficients @ rows[kept]
        share = norm(left[:, lines]) / np.maximum(norm(rows[gone][:, lines]), 1e-300)
        if (share > 4 * tolerance).any():
            return None
        off = max(off, float(share.max()))
        constant = np.where(np.abs(left[:, -1]) > 4 * tolerance * norm(rows[gone]), left[:, -1], 0.0)
        if constant.any() and not level[shift]:
            return None
        constant = constant / (rows[gone[shift], -1] or 1.0)
        found[point] = as_sums(space.width, members[kept], members[gone], coefficients, shift, constant)
    return torch.from_numpy(members[gone]), found, off


def _tolerance(subject: Subject, vectors: Array) -> float:
    count, numbers = vectors.shape
    return subject.tolerance.zero if numbers >= 2 * count else min(subject.tolerance.zero, CLOSE)


def _apart(gram: Tensor, tolerance: float) -> bool:
    """Whether rows are far from being sums of each other, as their Gram matrix tells."""
    size = gram.diagonal().sqrt()
    if not bool((size > 0).all()):
        return False
    unit = gram / size / size[:, None]
    unit.diagonal().sub_((10 * tolerance) ** 2)
    return int(torch.linalg.cholesky_ex(unit).info) == 0


def independent(rows: Array, tolerance: float) -> Array:
    """Rows of which all others are sums, those first that are furthest from the rest."""
    triangle, order = qr(rows.T, mode="r", pivoting=True)
    left = np.abs(np.diag(triangle))
    return np.sort(order[: np.count_nonzero(left > tolerance)])


def as_sums(
    width: int, kept: Array, gone: Array, coefficients: Array, shift: int = 0, constant: Array | float = 0.0
) -> ChannelTransform:
    """Sums of what is kept, and of one channel that is nothing but its shift."""
    stay, constant = np.setdiff1d(np.arange(width), gone), np.broadcast_to(constant, gone.shape)
    rows = np.concatenate([stay, gone.repeat(kept.size), gone])
    columns = np.concatenate([stay, np.tile(kept, gone.size), np.full(gone.size, gone[shift])])
    values = np.concatenate([np.ones(stay.size), coefficients.ravel(), constant])
    return ChannelTransform.of(width, width, *(torch.from_numpy(part) for part in (rows, columns, values)))
