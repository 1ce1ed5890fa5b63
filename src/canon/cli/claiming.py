"""What a verification is given as claims: the owner's, the other side's, and since when the suspect is known."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from canon.claims import Presented

ClaimFile = Annotated[
    Path | None, typer.Option("--claim", dir_okay=False, exists=True, help="The owner's claim, from `canon commit`.")
]
OpeningFile = Annotated[
    Path | None, typer.Option("--opening", dir_okay=False, exists=True, help="The claim's opening, or the part needed.")
]
Roots = Annotated[
    list[Path] | None,
    typer.Option(
        "--root",
        dir_okay=False,
        exists=True,
        help="PEM: roots of time-stamp authorities that you trust, other certificates, revocation lists; repeatable.",
    ),
]
Policies = Annotated[
    list[str] | None, typer.Option("--policy", metavar="OID", help="A policy that time-stamps must be given under.")
]
SuspectDate = Annotated[
    str | None,
    typer.Option("--suspect-date", metavar="DATE", help="From when on the suspect is known to exist, as 2026-03-01."),
]
SuspectDateSource = Annotated[
    str | None, typer.Option("--suspect-date-source", metavar="TEXT", help="How that is known.")
]
Rivals = Annotated[
    list[Path] | None,
    typer.Option("--rival", dir_okay=False, exists=True, help="A claim of the other side to the suspect; repeatable."),
]
RivalOpenings = Annotated[
    list[Path] | None,
    typer.Option("--rival-opening", dir_okay=False, exists=True, help="Its opening, in the order of --rival."),
]


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What the user named."""

    claim: ClaimFile = None
    opening: OpeningFile = None
    root: Roots = None
    policy: Policies = None
    suspect_date: SuspectDate = None
    suspect_date_source: SuspectDateSource = None
    rival: Rivals = None
    rival_opening: RivalOpenings = None

    @property
    def files(self) -> list[Path]:
        """Everything that is read."""
        several = [*(self.root or ()), *(self.rival or ()), *(self.rival_opening or ())]
        return [path for path in (self.claim, self.opening, *several) if path is not None]

    def presented(self) -> Presented | None:
        """The claim as `canon.judge` takes it; what is wrong with it becomes part of the answer."""
        date, source = self.suspect_date, self.suspect_date_source
        rivals, openings = self.rival or [], self.rival_opening or []
        if self.claim is None:
            if self.files or date is not None or source is not None:
                raise typer.BadParameter("roots, dates and rivals belong to a --claim")
            return None
        if (date is None) != (source is None):
            raise typer.BadParameter("--suspect-date and --suspect-date-source go together")
        if len(openings) > len(rivals):
            raise typer.BadParameter("there are more --rival-opening than --rival")
        from canon.claims import Presented, Rival, Trust

        return Presented.load(
            self.claim,
            self.opening,
            Trust.load(self.root or (), policies=self.policy or ()),
            suspect_date=date,
            suspect_date_source=source,
            rivals=[Rival.load(*both) for both in zip_longest(rivals, openings)],
        )
