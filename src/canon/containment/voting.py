"""One layer speaks for its space, where all that make it together tell little: the others may have been replaced."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from canon.containment.matching import LEAST, Accepted, Bar, Pairs, accept, compare
from canon.containment.yardstick import Yardstick
from canon.verify.layout import Step
from canon.verify.side import Part


def by_one_direction(
    step: Step, features: Tensor, labels: tuple[Tensor, Tensor, bool], pairs: Pairs, accepted: Accepted
) -> tuple[Pairs, Accepted]:
    """The best match by one direction alone, if it finds more channels distinctly than all together do.

    Args:
        step: The owner's.
        features: The suspect's.
        labels: As `compare` takes them: blocks of the suspect's channels, of the owner's, and whether a sign passes.
        pairs: The match by all directions.
        accepted: What is accepted of it.
    """
    directions = _directions(step)
    for columns, part in directions if len(directions) > 1 else ():
        yardstick = Yardstick.of(replace(step, features=step.features[:, columns], parts=(part,)))
        theirs, ours, flips = labels
        other = compare(yardstick, features[:, columns], theirs, ours, step.leader, flips)
        # What shuffled rows reach was told of all layers together; of this one alone, that may have been all of it.
        luck = min(1.0, step.shuffled * len(directions))
        found = accept(other, step.leader, Bar(yardstick.dimension, ours.numel(), luck), LEAST)
        if found.told > accepted.told:
            pairs, accepted = other, replace(found, alone=True)
    return pairs, accepted


def _directions(step: Step) -> list[tuple[slice, Part]]:
    """Every direction that a step's channels are known by: its columns, and what they are."""
    found, start = [], 0
    for part in step.parts:
        for _ in range(part.blocks):
            if part.numbers > 1 and part.exact:
                found.append((slice(start, start + part.numbers), replace(part, blocks=1)))
            start += part.numbers
    return found
