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
from canon.recovery.facts.alive import Alive, settled
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
    magnitudes = facts.magnitudes(FAINT)
    if not magnitudes.suspicious:
        return None
    # Assume that all are gone that most readers hardly read, and see which of them the living ones do without.
    spaces = {space.id: space for space in subject.narrowing}
    gone = {index: _candidates(space, facts, magnitudes) for index, space in spaces.items()}
    while True:
        gone = {index: marks for index, marks in gone.items() if marks.any()}
        alive = Alive(subject, gone)
        found = {index: marks & _faint(spaces[index], facts, magnitudes, alive) for index, marks in gone.items()}
        if settled(gone, found):
            break
        gone = found
    steps: list[Step] = []
    for index in sorted(gone, reverse=True):
        channels = torch.from_numpy(np.flatnonzero(gone[index]))
        if channels.numel() < spaces[index].width:
            steps.append(Step(index, channels, drop(subject, spaces[index], channels)))
            subject = subject.with_tensors(steps[-1].tensors)
    return in_steps(steps)


def _candidates(space: Space, facts: Facts, magnitudes: Magnitudes) -> Array:
    """Channels that most rows of every reader hardly read, or that are silent themselves."""
    unread, silent = np.ones((2, space.width), dtype=bool)
    for consumer in space.consumers:
        unread &= _small(magnitudes.typical(space, consumer), FAINT)
        silent &= _small(facts.sizes.loudness(space, consumer.point), FAINT)
    return np.asarray(unread | silent)


def _faint(space: Space, facts: Facts, magnitudes: Magnitudes, alive: Alive) -> Array:
    """Which channels have next to no row, or next to no column at any layer that reads them, and not both."""
    silent, unread, little = np.ones((3, space.width), dtype=bool)
    loud, read, touched, there = np.zeros((4, space.width), dtype=bool)
    for point in _bends(space):  # what is off most of the time is not silent
        silent &= _small(facts.sizes.at(space, point)[0], FAINT)
    for consumer in space.consumers:
        columns = magnitudes.columns(space, consumer, alive)
        size = facts.sizes.loudness(space, consumer.point)
        unread &= _small(columns, FAINT)
        silent &= _small(size, FAINT)
        little &= _small(columns * size, LITTLE)
        loud |= ~_small(facts.sizes.at(space, consumer.point)[0], ORDINARY)
        read |= ~_small(columns, ORDINARY)
        touched |= columns > 0
        there |= size > 0
    return np.asarray(little & (silent & read & there | unread & loud & touched))


def _bends(space: Space) -> list[int]:
    """Where functions are applied to channels."""
    bent = [stage for stage in space.stages if stage.kind == "activation" and stage.reach == "pointwise"]
    return [stage.inputs[0] for stage in bent]


def _small(values: Array, part: float) -> Array:
    return np.asarray(values <= part * np.median(values))
