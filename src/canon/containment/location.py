"""What `locate` finds, as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from torch import Tensor, nn

from canon._shown import Shown
from canon.containment.agreement import Agreement
from canon.verify.alignment import ESTABLISHED

SURE: Final = 4.0
"""Standard errors beyond which a difference that was learned is known to add to what the owner's rows have."""

FAR: Final = 0.06
"""Squared change of rows, relative to their size, from which on networks may be two that learned apart though channels
were moved, which nobody does by training."""

KEPT: Final = 0.002
"""What was learned apart, relative to what the owner's rows have learned, up to which a copy kept the rest. Networks
that learned the same apart, in the same time and by small steps, were seen from 0.0026 on; by usual steps from 0.02."""

LEARNED: Final = 0.02
"""Part of the owner's rows that must lie in shared directions to be known as learned; first weights have 0.011."""

Answer = Literal["contained", "derived", "unrelated", "not decided"]


@dataclass(frozen=True)
class LocatedLayer:
    """One layer of the owner's."""

    name: str
    channels: int
    found: int
    """Channels that the suspect has."""

    distinct: int
    """Those of them that are nobody else's, and not found by chance."""

    median: float
    """Median over the channels that were found: how far the row is from the owner's, relative to its size."""

    worst: float
    """Largest of those distances."""

    chance: float
    """The cosine that a channel of a stranger's reaches once in ten thousand times; matches beyond it count."""

    first: bool
    """Whether it reads the model's input, so that a stranger's channels may well resemble it."""


@dataclass(frozen=True, eq=False)
class LocatedSpace:
    """One space of the suspect's: whose channels they are."""

    name: str
    owner: int
    """The owner's channels."""

    match: Tensor
    """For every channel of the suspect the owner's channel that it is, or -1 for what is nobody's."""

    found: Tensor
    """For every channel of the owner's: whether the suspect has it."""

    distinct: Tensor
    """Whether it is nobody else's, and not found by chance."""

    chance: float
    """The cosine that a channel of a stranger's reaches once in ten thousand times; matches beyond it count."""

    pinned: bool
    """Whether the order is given, so that there is nothing to find."""

    @property
    def copies(self) -> int:
        """Channels of the suspect beyond the first of each channel of the owner's."""
        return int((self.match >= 0).sum()) - int(self.found.sum())

    @property
    def surplus(self) -> int:
        """Channels of the suspect that are nobody's."""
        return int((self.match < 0).sum())


@dataclass(frozen=True)
class Span:
    """Whether the owner's channels of one space are linear images of what the suspect computes."""

    name: str
    channels: int
    """The owner's channels that change."""

    spanned: int
    """Those that are linear images."""

    residual: float
    """Median over the channels: what a linear image leaves of them, on inputs that it was not fitted to."""

    chance: float
    """The same for a stranger: the suspect's network with its numbers shuffled."""


@dataclass(frozen=True)
class Updates:
    """What the suspect has in common with what the owner added to an ancestor."""

    cosine: float
    """Of suspect minus ancestor and owner minus ancestor; 1: all that the owner added, 0: nothing of it."""

    size: float
    """How large what the owner added is, relative to the ancestor."""


@dataclass(frozen=True)
class Start:
    """What the suspect's rows differ in from the owner's, beyond the first layers."""

    changed: float
    """Squares of the difference, relative to the rows."""

    shared: float
    """Part of it that lies in directions which many rows share: what training makes, and noise does not."""

    owner: float
    """Part of the owner's rows in directions that many of them share: what it learned, as far as that shows."""

    added: float
    """How much it adds, in these directions, to what the owner's rows have there, relative to its own squares: about
    -0.5 between networks that learned as much as each other apart."""

    error: float
    """The standard error of that: what rows that have nothing to do with the difference would give."""

    moved: bool
    """Whether the suspect's channels stand in other places than the owner's: by training, they stay."""

    bar: float
    """From which part on it was training."""

    @property
    def explains(self) -> bool:
        """Whether training apart from the same weights would explain what was found."""
        apart = self.changed > FAR if self.moved else self.added <= SURE * self.error
        return self.shared > self.bar and apart and not self.kept

    @property
    def kept(self) -> bool:
        """Whether nearly all that the owner's network learned is there: who learns apart does not come as near."""
        return self.learned <= KEPT

    @property
    def learned(self) -> float:
        """What was learned apart, relative to what the owner's rows have learned; infinite where that is not known."""
        return self.changed * self.shared / self.owner if self.owner > LEARNED else math.inf


@dataclass(frozen=True, eq=False, repr=False)
class Location(Shown):
    """Where the owner's network stands in a suspect."""

    answer: Answer
    reason: str
    """One sentence."""

    coverage: float
    """Share of the owner's channels that were found, distinctly and not by chance."""

    deep: float
    """The same, without the layers that read the model's input."""

    agreement: Agreement | None
    """Whether the extracted model computes what the suspect computes; None where nothing was extracted."""

    owner_agreement: Agreement | None
    """Whether it computes what the owner's model computes; None where that is not at hand."""

    model: nn.Module | None
    """The extracted model: the owner's layout, the suspect's numbers only; None where nothing could be compared."""

    layers: tuple[LocatedLayer, ...] = ()
    spaces: tuple[LocatedSpace, ...] = ()
    refitted: tuple[str, ...] = ()
    """Layers whose columns were refitted on the suspect's activations: their numbers are no longer its weights."""

    spans: tuple[Span, ...] = ()
    """Spaces in which rows were missing, and the owner's model is at hand: it supports *derived*, never more."""

    ancestors: tuple[Updates, ...] = ()
    notes: tuple[str, ...] = ()
    """What else must be said: norms that were put in, kernels that were cropped."""

    seed: int = 0
    """What rows were projected with."""

    start: Start | None = None
    """How the rows differ from the owner's, where that was asked: would a common start explain what was found?"""

    def _shown(self) -> Mapping[str, object]:
        return {
            "answer": self.answer,
            "reason": self.reason,
            "coverage": self.coverage,
            "residual": self.median,
            "agreement": self.agreement,
        }

    @property
    def median(self) -> float | None:
        """Median of the layers' median residuals; None where nothing was compared."""
        values = sorted(layer.median for layer in self.layers if layer.found)
        return values[len(values) // 2] if values else None

    @property
    def worst(self) -> float | None:
        """Largest residual of a channel that was found; None where none was."""
        return max((layer.worst for layer in self.layers if layer.found), default=None)

    @property
    def missing(self) -> int:
        """The owner's channels that were not found."""
        return sum(space.owner - int(space.found.sum()) for space in self.spaces)

    def established_at(self, spaces: Iterable[str]) -> bool:
        """Whether the weights alone decide the order, in these spaces and all over; see `Alignment.established_at`."""
        chosen = set(spaces)
        here = [space for space in self.spaces if space.name in chosen and not space.pinned]
        enough = all(float(space.distinct.double().mean()) >= ESTABLISHED for space in here)
        return self.answer in ("contained", "derived") and self.coverage >= ESTABLISHED and enough

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "answer": self.answer,
            "reason": self.reason,
            "coverage": self.coverage,
            "deep": self.deep,
            "residual": self.worst,
            "median": self.median,
            "missing": self.missing,
            "agreement": None if self.agreement is None else asdict(self.agreement),
            "owner_agreement": None if self.owner_agreement is None else asdict(self.owner_agreement),
            "refitted": list(self.refitted),
            "spans": [asdict(span) for span in self.spans],
            "ancestors": [asdict(update) for update in self.ancestors],
            "notes": list(self.notes),
            "layers": [asdict(layer) for layer in self.layers],
            "spaces": [
                {
                    "name": space.name,
                    "owner": space.owner,
                    "suspect": space.match.numel(),
                    "found": int(space.found.sum()),
                    "distinct": int(space.distinct.sum()),
                    "copies": space.copies,
                    "surplus": space.surplus,
                    "pinned": space.pinned,
                }
                for space in self.spaces
            ],
        }
