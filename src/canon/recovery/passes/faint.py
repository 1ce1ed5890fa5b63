"""Channels that are read, but contribute nothing that could be measured.

A column of 10⁻¹², a row of zeros with a little noise, a clique that cancels but for its last digits: judged by
contribution, the size of a channel times the column that reads it, against the other channels of the space. A
channel of which everything is small, row and columns alike, is what training leaves of a channel that it gave up,
and stays.

A channel that has a shift and hardly moves around it is a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from canon.describe import Array
from canon.graph import Space
from canon.recovery.facts import Facts, Subject
from canon.recovery.facts.alive import Alive, settled
from canon.recovery.facts.given_up import ORDINARY
from canon.recovery.facts.magnitudes import Magnitudes
from canon.recovery.noise import OUTSTANDING
from canon.recovery.proposal import Proposal, SpaceChange, hold, space_by_space

FAINT: Final = 4e-5
"""Rows or columns below this part of the median count as none. Weak channels of real networks have 1e-4 and more."""

WEAK: Final = 9e-5
"""The most that counts as none where many channels show that there is noise."""

MANY: Final = 8
"""As many channels as it takes to show that."""

LITTLE: Final = 1e-3
"""No more than this part of the median may be contributed: a small row may be scaled up by whoever reads it."""


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

    @property
    def there(self) -> Array:
        """Channels of which there is something, and something of it is read."""
        return np.asarray((self.product > 0) | (self.loud & (self.column > 0)))

    def below(self, limit: float, noises: Array | float = 1.0) -> Array:
        """Which channels have next to no row, or next to no column at any layer that reads them, and not both.

        Args:
            limit: What counts as none.
            noises: Per channel: how many times the noise of one column is in its column.
        """
        silent, unread = (self.row <= limit) & self.read, (self.column <= limit * noises) & self.loud
        return np.asarray((self.product <= LITTLE * noises) & (silent | unread))


def faint(subject: Subject, facts: Facts) -> Proposal | None:
    """Nobody reads such channels any more, and constants read nothing."""
    magnitudes = facts.magnitudes(FAINT)
    if not magnitudes.suspicious:
        return None
    spaces = {space.id: space for space in subject.narrowing}
    small = {index: _smallest(space, facts, magnitudes) for index, space in spaces.items()}
    limit, noises = FAINT, {index: np.ones(space.width) for index, space in spaces.items()}
    shown = np.concatenate([share[(share <= FAINT) & (share > 0)] for share in small.values()] or [np.zeros(0)])
    if shown.size >= MANY:
        # What many channels show is noise. Some of it is louder than most, and that of copies was added up.
        limit = float(np.clip(OUTSTANDING * np.median(shown), FAINT, WEAK))
        noises = {index: np.sqrt(subject.members(space)) for index, space in spaces.items()}
    gone = {index: share <= limit * noises[index] for index, share in small.items()}
    while True:  # assume that all of these are gone, and see which of them the living ones do without
        gone = {index: marks for index, marks in gone.items() if marks.any()}
        alive = Alive(subject, gone)
        shares = {index: _shares(spaces[index], facts, magnitudes, alive) for index in gone}
        found = {index: marks & shares[index].below(limit, noises[index]) for index, marks in gone.items()}
        if settled(gone, found):
            break
        gone = found
    if not any((marks & shares[index].there).any() for index, marks in gone.items()):
        gone = {}  # what is not there at all goes elsewhere
    nobody = {index: np.zeros(space.width, dtype=bool) for index, space in spaces.items()}
    still = {index: _still(spaces[index], facts, magnitudes, limit) for index in magnitudes.suspicious & spaces.keys()}

    def settled_down(now: Subject, space: Space) -> SpaceChange | None:
        dead = gone.get(space.id, nobody[space.id])
        held = dead | still.get(space.id, nobody[space.id])
        return None if held.all() else hold(now, space, held, dead)

    return space_by_space(subject, [spaces[i] for i in sorted(gone.keys() | still.keys(), reverse=True)], settled_down)


def _still(space: Space, facts: Facts, magnitudes: Magnitudes, limit: float) -> Array:
    """Channels that are read as usual, and move by next to nothing around what is loud, from their row to the end."""
    moves, level, read = np.zeros((3, space.width))
    ends = {producer.point for producer in space.producers} | {consumer.point for consumer in space.consumers}
    for point in ends.union(_bends(space)):
        moves = np.maximum(moves, _share(facts.sizes.at(space, point)[0]))
    for consumer in space.consumers:
        level = np.maximum(level, _share(facts.sizes.loudness(space, consumer.point)))
        read = np.maximum(read, _share(magnitudes.typical(space, consumer)))
    return np.asarray((moves > 0) & (moves <= limit) & (level > ORDINARY) & (read > ORDINARY))


def _smallest(space: Space, facts: Facts, magnitudes: Magnitudes) -> Array:
    """By channel: what most rows of every reader read of it, or how loud it is itself, where that is less."""
    read, loud = np.zeros((2, space.width))
    for consumer in space.consumers:
        read = np.maximum(read, _share(magnitudes.typical(space, consumer)))
        loud = np.maximum(loud, _share(facts.sizes.loudness(space, consumer.point)))
    return np.minimum(read, loud)


def _shares(space: Space, facts: Facts, magnitudes: Magnitudes, alive: Alive) -> Shares:
    row, column, product = np.zeros((3, space.width))
    loud, read = np.zeros((2, space.width), dtype=bool)
    for point in _bends(space):  # what is off most of the time is not silent
        share = _share(facts.sizes.at(space, point)[0])
        row, loud = np.maximum(row, share), loud | (share > ORDINARY)
    for consumer in space.consumers:
        columns = magnitudes.columns(space, consumer, alive)
        size = facts.sizes.loudness(space, consumer.point)
        row, column = np.maximum(row, _share(size)), np.maximum(column, _share(columns))
        product = np.maximum(product, _share(columns * size))
        loud |= _share(facts.sizes.at(space, consumer.point)[0]) > ORDINARY
        read |= _share(columns) > ORDINARY
    return Shares(row, column, product, loud, read)


def _bends(space: Space) -> list[int]:
    """Where functions are applied to channels."""
    bent = [stage for stage in space.stages if stage.kind == "activation" and stage.reach == "pointwise"]
    return [stage.inputs[0] for stage in bent]


def _share(values: Array) -> Array:
    """Relative to the median; where that is zero, whatever is not is more than any part of it."""
    median = np.median(values)
    return np.asarray(values / median if median > 0 else np.where(values > 0, np.inf, 0.0))
