"""What is brought to a verification: a claim with all that it is held against, and what the verification uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import nn

from canon.claims.claim import Claim
from canon.claims.opening import Opening
from canon.claims.signed_models import SignedModel
from canon.claims.trust import Trust
from canon.errors import ClaimError
from canon.verify.key import LayoutKey
from canon.watermarks.key import Key


@dataclass(frozen=True, eq=False)
class Rival:
    """A claim of the other side: to the suspect itself, or to a model that the suspect was made from."""

    claim: Claim | None
    opening: Opening | None = None
    reference: nn.Module | None = None
    """The other side's own model, where the suspect is not the one that it committed to."""

    fault: str | None = None
    """Why there is no claim or no opening: what was brought cannot be read."""

    @staticmethod
    def load(claim: str | Path, opening: str | Path | None = None, reference: nn.Module | None = None) -> Rival:
        """Read files; what is wrong with them becomes part of the answer."""
        held, shown, fault = _read(claim, opening)
        return Rival(held, shown, reference, fault)


@dataclass(frozen=True, eq=False)
class Presented:
    """A claim as it is brought to a verification, with all that it is to be held against."""

    claim: Claim | None
    opening: Opening | None
    trust: Trust
    suspect_date: datetime | None = None
    """From when on the suspect is known to have existed; with a time zone."""

    suspect_date_source: str | None = None
    """How that is known."""

    rivals: tuple[Rival, ...] = ()
    fault: str | None = None
    """Why there is no claim or no opening: what was brought cannot be read."""

    @staticmethod
    def load(
        claim: str | Path,
        opening: str | Path | None,
        trust: Trust,
        *,
        suspect_date: str | datetime | None = None,
        suspect_date_source: str | None = None,
        rivals: Sequence[Rival] = (),
    ) -> Presented:
        """Read files. What is wrong with them becomes part of the answer; a file that is not there is an error."""
        date = parse_date(suspect_date) if isinstance(suspect_date, str) else suspect_date
        held, shown, fault = _read(claim, opening)
        return Presented(held, shown, trust, date, suspect_date_source, tuple(rivals), fault)

    def __post_init__(self) -> None:
        if self.suspect_date is None:
            return
        if self.suspect_date.tzinfo is None:
            raise ClaimError("the suspect's date has no time zone", hint="Give it in UTC")
        if not (self.suspect_date_source or "").strip():
            raise ClaimError(
                "the suspect's date needs a source", hint="Say how it is known, such as an upload's record"
            )


@dataclass(frozen=True, eq=False)
class Used:
    """What a verification uses, all of which a claim must have fixed."""

    reference: nn.Module | None = None
    layout_key: LayoutKey | None = None
    watermark_keys: Sequence[Key] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those that are not the standard ones."""

    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By role (`reference`, `layout_key`, `watermark_key`, `suspect`), SHA-256 of the files at hand."""

    signature: SignedModel | None = None
    """What OpenSSF Model Signing signed of the reference, where the claim commits to that."""

    suspect: nn.Module | None = None
    """The suspect as it was given, which rivals open to."""

    related: Callable[[nn.Module], bool] | None = None
    """Whether the suspect is, or was made from, a model that a rival brings and that its claim opens to."""


def parse_date(text: str) -> datetime:
    """A day, which begins at midnight UTC, or a moment with its time zone; in UTC.

    >>> parse_date("2026-03-01").isoformat()
    '2026-03-01T00:00:00+00:00'
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ClaimError(f"'{text:.40}' is no date", hint="Write 2026-03-01, or 2026-03-01T12:00:00Z") from error
    if moment.tzinfo is None:
        if len(text) > len("2026-03-01"):
            raise ClaimError(f"'{text:.40}' has no time zone", hint="Write 2026-03-01T12:00:00Z")
        moment = moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ClaimError(f"'{text:.40}' is no date", hint="Write 2026-03-01, or 2026-03-01T12:00:00Z") from error


def _read(claim: str | Path, opening: str | Path | None) -> tuple[Claim | None, Opening | None, str | None]:
    held, shown, fault = None, None, None
    try:
        held = Claim.load(claim)
        shown = None if opening is None else Opening.load(opening)
    except ClaimError as error:
        fault = str(error)
    return held, shown, fault
