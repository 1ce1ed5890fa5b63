"""Tier 2 and the watermark's own evidence.

The p-value is the chance that a message drawn at random agrees with the model in at least as many bits. It is exact
whatever the model is, because it rests only on the draw of the message: a key that has nothing to do with the model
and with the reference has a uniform message. Neither recovery nor alignment ever sees the message or the key.
Alignment does see the reference, though, which holds the mark, so a reading of an aligned model counts only where the
alignment is forced by the weights (`Alignment.established_at`); otherwise the model is read as it was recovered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from canon.errors import VerificationError

FRACTION: Final = 0.9
"""λ: the part of the lost similarity that must come back. The paper gives no value; this is ours."""

SLACK: Final = 0.02
"""δ: what extractor noise and rounding may take off. The paper gives no value; this is ours."""

ALPHA: Final = 1e-6
"""A p-value above this proves nothing."""


class Extraction(Protocol):
    """What is needed of a watermark scheme's reading."""

    @property
    def scheme(self) -> str: ...  # noqa: D102
    @property
    def matched(self) -> int: ...  # noqa: D102
    @property
    def total(self) -> int: ...  # noqa: D102
    @property
    def similarity(self) -> float: ...  # noqa: D102
    @property
    def alternatives(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class Mark:
    """A watermark as read from the suspect."""

    scheme: str
    matched: int
    """Message bits that are right."""

    total: int
    similarity: float
    """The scheme's native similarity."""

    read_from: Literal["aligned", "extracted", "recovered"]
    """The model that it was read from: aligned, extracted from what surrounds it, or only recovered."""

    spaces: tuple[str, ...] = ()
    """The channel spaces of the layers that bear it."""

    alternatives: int = 1
    """Among how many places the key was free to choose the one that fits best."""

    @property
    def p_value(self) -> float:
        """Chance of as many right bits with a random message."""
        return p_value(self.matched, self.total, self.alternatives)

    @staticmethod
    def of(
        extraction: Extraction, read_from: Literal["aligned", "extracted", "recovered"], spaces: Iterable[str]
    ) -> Mark:
        """Take over a scheme's reading."""
        found = extraction
        return Mark(
            found.scheme,
            found.matched,
            found.total,
            found.similarity,
            read_from,
            tuple(sorted(spaces)),
            found.alternatives,
        )


@dataclass(frozen=True)
class Tier2:
    """The paper's predicate `r − a ≥ λΔ − δ` with `Δ = max(0, c − a)`."""

    clean: float
    """c: similarity on the owner's model."""

    attacked: float
    """a: similarity on the suspect as it was given."""

    recovered: float
    """r: similarity on the recovered model."""

    fraction: float = FRACTION
    """λ."""

    slack: float = SLACK
    """δ."""

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise VerificationError(f"λ must be in (0, 1], got {self.fraction}")
        if not self.slack >= 0:
            raise VerificationError(f"δ must not be negative, got {self.slack}")

    @property
    def drop(self) -> float:
        """Δ: the similarity that the attack took."""
        return max(0.0, self.clean - self.attacked)

    @property
    def passed(self) -> bool:
        """Whether enough of it is back."""
        return self.recovered - self.attacked >= self.fraction * self.drop - self.slack


def p_value(matched: int, total: int, alternatives: int = 1) -> float:
    """One-sided binomial p-value: the chance of at least `matched` right bits of `total` by guessing.

    A key that was free to choose among many places has as many tries, and its chance is at most their sum.

    >>> p_value(10, 10) == 2.0**-10
    True
    """
    if total < 1 or not 0 <= matched <= total:
        raise VerificationError(f"{matched} of {total} bits cannot be right")
    from scipy.stats import binom  # takes a second to import

    return min(1.0, max(1, alternatives) * float(binom.sf(matched - 1, total, 0.5)))
