"""noisy_clique: channels that cancel each other but for a little noise."""

from __future__ import annotations

from typing import ClassVar, final

from canon.attacks.channels import Channels, Kind
from canon.attacks.interface import Preserves, Primitive, Setting


@final
class NoisyClique(Primitive):
    """A clique whose outgoing weights sum to noise, by default of 10⁻⁵ of what is usual in the layer."""

    name: ClassVar[str] = "noisy_clique"
    preserves: ClassVar[Preserves] = "nearly"

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """Append one clique to each block."""
        return channels.append(Kind.NOISY_CLIQUE, count, setting.options.clique_noise)
