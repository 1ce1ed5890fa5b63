"""Cases about time and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from canon.bench.cases import Case, one_of

FOUR: Final = "four primitives"
"""One after the other on every layer, without expanded kernels: the largest case, and the one whose memory counts."""

COSTS: Final = ("trace", "attack", "growth", "locate", "memory", "training")


@dataclass(frozen=True, kw_only=True)
class Disguised(Case):
    """A case about one attack on one network with random weights."""

    model: str
    attack: str
    """A primitive, a way to sample a sequence of them, or `four primitives`."""

    ratio: float = 0.2
    """ρ: share of channels that are added."""

    @property
    def shared(self) -> object:
        """See `Case`."""
        return self.model


@dataclass(frozen=True, kw_only=True)
class Speed(Disguised):
    """What every step costs, beside yardsticks measured in the same run."""

    kind: ClassVar[str] = "speed"

    machine: str = "here"
    """A word for the machine, since all depends on it."""

    probe: int = 1
    """Runs of the probe method, which is slow; 0 leaves it out."""


@dataclass(frozen=True, kw_only=True)
class Profiled(Disguised):
    """Where the time of one recovery goes, function by function."""

    kind: ClassVar[str] = "profiled"


@dataclass(frozen=True, kw_only=True)
class Cost(Disguised):
    """One number, and what it may be at most."""

    kind: ClassVar[str] = "cost"

    what: str
    """One of `COSTS`."""

    attack: str = "mix-opseq"

    def check(self) -> None:
        """See `Case`."""
        one_of("cost", self.what, COSTS)


@dataclass(frozen=True, kw_only=True)
class Scale(Case):
    """Time and memory on a generated network, to see how they grow with its size."""

    kind: ClassVar[str] = "scale"

    step: str
    """`recover` or `locate`."""

    size: float
    """Parameters of the attacked network, about; the largest, 10⁹, need 16 GB."""

    family: str
    """One of `measures.scale.FAMILIES`."""

    def check(self) -> None:
        """See `Case`."""
        one_of("step", self.step, ("recover", "locate"))
