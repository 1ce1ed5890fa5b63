"""What a key reads out of a model, bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from canon.errors import WatermarkError
from canon.watermarks.key import Key
from canon.watermarks.message import Message
from canon.watermarks.reading import Reader, Reading


@dataclass(frozen=True)
class Extraction:
    """What was read out of a model, judged against the key."""

    scheme: str
    """Name of the scheme."""
    bits: tuple[int | None, ...]
    """Message bits as read; None where a score of zero or NaN says neither 0 nor 1, which counts as wrong."""
    expected: tuple[int, ...]
    """Message bits as embedded, or the bits that the scheme derives from the message."""
    similarity: float
    """The scheme's native similarity, between 0 and 1."""
    margin: float
    """The least agreement of any carrier with what it should say; above zero means all agree."""
    shape_mismatch: tuple[str, ...]
    """Why the similarity is only chance: one line for every tensor of another shape."""
    details: Mapping[str, str | float | bool]
    """Further findings of the scheme, such as a decoded text."""
    sources: tuple[str, ...] = ()
    """What was read: tensors by name, and outputs as `<module> output`."""
    alternatives: int = 1
    """Among how many places the key was free to choose the one that fits best; luck has as many tries."""
    carries_alone: bool = True
    """Whether bits of a wrong key are fair coins, so that a binomial tail rules out luck (`Scheme.carries_alone`)."""

    @property
    def total(self) -> int:
        """Number of message bits."""
        return len(self.expected)

    @property
    def matched(self) -> int:
        """Number of message bits that are right; binomial for a model without the mark."""
        return sum(have == want for have, want in zip(self.bits, self.expected, strict=True))

    @property
    def message(self) -> Message:
        """The message as read, with 0 for bits that say nothing."""
        return Message(tuple(bit or 0 for bit in self.bits))

    @property
    def unread(self) -> int:
        """Number of message bits that say nothing."""
        return self.bits.count(None)


def judged(scheme: str, carries_alone: bool, key: Key, reader: Reader, reading: Reading) -> Extraction:
    """A reading against what the key expects; a score of zero, or one that is not finite, says neither 0 nor 1."""
    message = reading.expected or key.message
    expected = message.bits
    scores = reading.scores.detach().double().cpu()
    if scores.shape != (len(expected),):
        raise WatermarkError(f"the scheme read {tuple(scores.shape)} scores for {len(expected)} bits", where=scheme)
    bits = tuple(None if score == 0 or not isfinite(score) else int(score > 0) for score in scores.tolist())
    right = sum(have == want for have, want in zip(bits, expected, strict=True))
    similarity = right / len(bits) if reading.similarity is None else reading.similarity
    margin = float((scores * message.signs()).min()) if reading.margin is None else reading.margin
    margin = margin if isfinite(margin) else 0.0
    return Extraction(
        scheme=scheme,
        bits=bits,
        expected=expected,
        similarity=min(1.0, max(0.0, similarity)) if isfinite(similarity) else 0.0,
        margin=min(margin, 0.0) if None in bits else margin,
        shape_mismatch=reader.mismatches,
        details=reading.details,
        alternatives=reading.alternatives,
        sources=reader.sources,
        carries_alone=carries_alone,
    )
