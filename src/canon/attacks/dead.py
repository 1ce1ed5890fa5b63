"""Channels that are never switched on: by no input that can reach them, or by none that was tried."""

from __future__ import annotations

from typing import ClassVar, final

from canon.attacks.channels import Channels, Kind
from canon.attacks.interface import Preserves, Primitive, Setting


@final
class DeadRange(Primitive):
    """Filters that are nowhere positive, over inputs that are never negative, and a shift below the activation's floor.

    Consumers read such a channel with any weight. Behind a norm its shift is chosen so that the channel stays down.
    Spaces whose inputs may have either sign are skipped.
    """

    name: ClassVar[str] = "dead_range"

    def obstacle(self, setting: Setting) -> str | None:
        """The range of some input must be known, and the activation have a floor."""
        return setting.place.range_obstacle

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Append dummies."""
        return channels.append(Kind.DEAD_RANGE, count)


@final
class DeadData(Primitive):
    """Any filter, with a threshold above all that it gives on the probes; consumers read it with any weight.

    The function is kept on the probes and what is like them, and nowhere else.
    """

    name: ClassVar[str] = "dead_data"
    preserves: ClassVar[Preserves] = "on data"

    def obstacle(self, setting: Setting) -> str | None:
        """There must be a shift to set, in an ordinary layer, and an activation with a floor."""
        return setting.place.data_obstacle

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Append dummies."""
        return channels.append(Kind.DEAD_DATA, count)
