"""What became of a model's channels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from canon.recovery.partition import Classes


@dataclass(frozen=True, eq=False)
class SpaceOutcome:
    """What became of one space's channels."""

    classes: Classes
    kept: Tensor
    """Channels that remain, ascending."""

    dead: Tensor
    """Bool per channel: leads a class that nothing alive reads."""

    folded: Tensor
    """Bool per channel: leads a constant class that went into biases."""

    protected: Tensor
    """Bool per channel: kept although nothing in the weights asks for it."""

    cancelled: Tensor
    """Per channel that leads a class: largest ratio of a sum taken for zero to what was added up."""
