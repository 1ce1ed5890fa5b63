"""nso_clique: channels that cancel each other."""

from __future__ import annotations

from typing import ClassVar, final

from canon.attacks.channels import Channels, Kind
from canon.attacks.interface import Primitive, Setting


@final
class NsoClique(Primitive):
    """Channels with one incoming filter and outgoing weights that cancel: `Σₖ vₖ·σ(u·x) = 0` when `Σₖ vₖ = 0`."""

    name: ClassVar[str] = "nso_clique"

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Append one clique to each block."""
        return channels.append(Kind.CLIQUE, count)
