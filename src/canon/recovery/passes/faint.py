"""Channels that are read, but contribute nothing that could be measured.

A column of 10⁻¹², a row of zeros with a little noise, a clique that cancels but for its last digits: judged by
contribution, the size of a channel times the column that reads it, against the other channels of the space. A
channel of which everything is small, row and columns alike, is what training leaves of a channel that it gave up,
and stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from canon.describe import Array
from canon.graph import Space
from canon.recovery.facts import Facts, Subject
from canon.recovery.facts.alive import Alive, settled
from canon.recovery.facts.magnitudes import Magnitudes
from canon.recovery.noise import OUTSTANDING
from canon.recovery.rewriting import Rewrite, Step, drop, in_steps
from canon.recovery.tolerance import FAINT

WEAK: Final = 9e-5
"""The most that counts as none where many channels show that there is noise."""

MANY: Final = 8
"""As many channels as it takes to show that."""

LITTLE: Final = 1e-3
"""No more than this part of the median may be contributed: a small row may be scaled up by whoever reads it."""

ORDINARY: Final = 1e-2
"""A part of the median that nothing small comes near."""


@dataclass(frozen=True, eq=False)
class Shares:
    """How small the channels of a space are, relative to the median."""

    row: Array
    """How loud a channel is, where it is loudest."""

    column: Array
    """The columns that living rows read it with, where they are largest."""

    product: Array
    """Both together, where that is largest."""

    loud: Array
    """Channels of ordinary loudness."""

    read: Array
    """Channels that are read as usual."""

    there: Array
    """Channels of which there is something, and something of it is read."""

    def below(self, limit: float) -> Array:
        """Which channels have next to no row, or next to no column at any layer that reads them, and not both."""
        silent, unread = (self.row <= limit) & self.read, (self.column <= limit) & self.loud
        return np.asarray((self.product <= LITTLE) & (silent | unread))

    def least(self) -> Array:
        """What makes each channel small."""
        return np.minimum(self.row, self.column)


def faint(subject: Subject, facts: Facts) -> Rewrite | None:
    """Nobody reads such channels any more."""
    magnitudes = facts.magnitudes(FAINT)
    if not magnitudes.suspicious:
        return None
    spaces = {space.id: space for space in subject.narrowing}
    candidates = {index: _candidates(space, facts, magnitudes) for index, space in spaces.items()}
    gone, shares = _settled(subject, facts, magnitudes, candidates, FAINT)
    if sum(int(marks.sum()) for marks in gone.values()) >= MANY:
        # What many channels show is noise, and some of it is louder than most.
        noise = np.median(np.concatenate([shares[index].least()[marks] for index, marks in gone.items()]))
        if OUTSTANDING * noise > FAINT:
            gone, shares = _settled(subject, facts, magnitudes, candidates, min(OUTSTANDING * noise, WEAK))
    if not any((marks & shares[index].there).any() for index, marks in gone.items()):
        return None  # what is not there at all goes elsewhere
    steps: list[Step] = []
    for index in sorted(gone, reverse=True):
        channels = torch.from_numpy(np.flatnonzero(gone[index]))
        if channels.numel() < spaces[index].width:
            steps.append(Step(index, channels, drop(subject, spaces[index], channels)))
            subject = subject.with_tensors(steps[-1].tensors)
    return in_steps(steps)


def _settled(
    subject: Subject, facts: Facts, magnitudes: Magnitudes, gone: dict[int, Array], limit: float
) -> tuple[dict[int, Array], dict[int, Shares]]:
    """Assume that all candidates are gone, and see which of them the living ones do without."""
    while True:
        gone = {index: marks for index, marks in gone.items() if marks.any()}
        alive = Alive(subject, gone)
        shares = {index: _shares(subject.graph.spaces[index], facts, magnitudes, alive) for index in gone}
        found = {index: marks & shares[index].below(limit) for index, marks in gone.items()}
        if settled(gone, found):
            return gone, shares
        gone = found


def _candidates(space: Space, facts: Facts, magnitudes: Magnitudes) -> Array:
    """Channels that most rows of every reader hardly read, or that are silent themselves."""
    read, loud = np.zeros((2, space.width))
    for consumer in space.consumers:
        read = np.maximum(read, _share(magnitudes.typical(space, consumer)))
        loud = np.maximum(loud, _share(facts.sizes.loudness(space, consumer.point)))
    return np.asarray(np.minimum(read, loud) <= WEAK)


def _shares(space: Space, facts: Facts, magnitudes: Magnitudes, alive: Alive) -> Shares:
    row, column, product = np.zeros((3, space.width))
    loud, read, there = np.zeros((3, space.width), dtype=bool)
    for point in _bends(space):  # what is off most of the time is not silent
        row = np.maximum(row, _share(facts.sizes.at(space, point)[0]))
    for consumer in space.consumers:
        columns = magnitudes.columns(space, consumer, alive)
        size = facts.sizes.loudness(space, consumer.point)
        row, column = np.maximum(row, _share(size)), np.maximum(column, _share(columns))
        product = np.maximum(product, _share(columns * size))
        loud |= _share(facts.sizes.at(space, consumer.point)[0]) > ORDINARY
        read |= _share(columns) > ORDINARY
        there |= columns * size > 0
    return Shares(row, column, product, loud, read, there)


def _bends(space: Space) -> list[int]:
    """Where functions are applied to channels."""
    bent = [stage for stage in space.stages if stage.kind == "activation" and stage.reach == "pointwise"]
    return [stage.inputs[0] for stage in bent]


def _share(values: Array) -> Array:
    """Relative to the median; where that is zero, whatever is not is more than any part of it."""
    median = np.median(values)
    return np.asarray(values / median if median > 0 else np.where(values > 0, np.inf, 0.0))
