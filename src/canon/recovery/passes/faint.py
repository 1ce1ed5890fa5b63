"""Channels that are read, but contribute nothing that could be measured.

A column of 10⁻¹², a row of zeros with a little noise, a clique that cancels but for its last digits: judged by
contribution, the size of a channel times the column that reads it, against the other channels of the space. A
channel of which everything is small, row and columns alike, is what training leaves of a channel that it gave up,
and stays.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from canon.describe import Array
from canon.graph import Space
from canon.recovery.facts import Facts, Subject
from canon.recovery.facts.magnitudes import Magnitudes
from canon.recovery.rewriting import Rewrite, Step, drop, in_steps

FAINT: Final = 4e-5
"""Rows or columns below this part of the median count as none. Weak channels of real networks have 1e-4 and more."""

LITTLE: Final = 1e-3
"""No more than this part of the median may be contributed: a small row may be scaled up by whoever reads it."""

ORDINARY: Final = 1e-2
"""A part of the median that nothing small comes near."""


def faint(subject: Subject, facts: Facts) -> Rewrite | None:
    """Nobody reads such channels any more."""
    steps: list[Step] = []
    magnitudes = facts.magnitudes(FAINT)
    suspicious = magnitudes.suspicious
    for space in reversed(subject.narrowing):  # from the end: what only faint channels read is faint itself
        if space.id in suspicious:
            channels = torch.from_numpy(np.flatnonzero(_faint(space, facts, magnitudes)))
            if 0 < channels.numel() < space.width:
                steps.append(Step(space.id, channels, drop(subject, space, channels)))
                subject, magnitudes = subject.with_tensors(steps[-1].tensors), magnitudes.after(steps[-1].tensors)
                suspicious = magnitudes.suspicious
    return in_steps(steps)


def _faint(space: Space, facts: Facts, magnitudes: Magnitudes) -> Array:
    """Which channels have next to no row, or next to no column at any layer that reads them, and not both."""
    silent, unread, little = np.ones((3, space.width), dtype=bool)
    loud, read = np.zeros((2, space.width), dtype=bool)
    for point in _bends(space):  # what is off most of the time is not silent
        silent &= _small(facts.sizes.at(space, point)[0], FAINT)
    for consumer in space.consumers:
        columns, size = magnitudes.columns(space, consumer), facts.sizes.loudness(space, consumer.point)
        unread &= _small(columns, FAINT) & (columns > 0)
        silent &= _small(size, FAINT) & (size > 0)
        little &= _small(columns * size, LITTLE)
        loud |= ~_small(facts.sizes.at(space, consumer.point)[0], ORDINARY)
        read |= ~_small(columns, ORDINARY)
    return np.asarray(little & (silent & read | unread & loud))


def _bends(space: Space) -> list[int]:
    """Where functions are applied to channels."""
    bent = [stage for stage in space.stages if stage.kind == "activation" and stage.reach == "pointwise"]
    return [stage.inputs[0] for stage in bent]


def _small(values: Array, part: float) -> Array:
    return np.asarray(values <= part * np.median(values))
