"""The verdict: a pure function of the four answers, in one table.

Strong words are *matches* and *proved*. Both need the owner's network in the suspect; *proved* also needs a claim that
was there first. Everything that a stranger could have made afterwards gives neither. Nor does a mark alone: a key older
than the suspect may have been made for what the suspect has from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

from canon.verify.answers import Answers

Kind = Literal["proved", "matches", "refuted", "inconclusive"]


@dataclass(frozen=True)
class Verdict:
    """What follows from the answers, and why."""

    kind: ClassVar[Kind]
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


@final
@dataclass(frozen=True)
class Proved(Verdict):
    """The suspect holds what a claim had fixed before the suspect existed."""

    kind: ClassVar[Kind] = "proved"


@final
@dataclass(frozen=True)
class Matches(Verdict):
    """The suspect holds the owner's network, and the mark where a key was given; who was first is open."""

    kind: ClassVar[Kind] = "matches"


@final
@dataclass(frozen=True)
class Refuted(Verdict):
    """The suspect is another network that computes something else."""

    kind: ClassVar[Kind] = "refuted"


@final
@dataclass(frozen=True)
class Inconclusive(Verdict):
    """Neither has been shown."""

    kind: ClassVar[Kind] = "inconclusive"


@dataclass(frozen=True)
class Rule:
    """One line of the table: if the answers are these, the verdict is that."""

    verdict: type[Verdict]
    network: tuple[str, ...]
    mark: tuple[str, ...]
    priority: tuple[str, ...]
    says: str
    """The verdict in one sentence; the answers' own reasons follow it."""

    function: tuple[str, ...] = ("agree", "disagree", "not decided")
    apart: bool = False
    """Whether outputs must also move from probe to probe in ways of their own."""

    def holds(self, answers: Answers) -> bool:
        """Whether the answers are those of this line."""
        return (
            answers.network.answer in self.network
            and answers.mark.answer in self.mark
            and answers.priority.answer in self.priority
            and answers.function.answer in self.function
            and not (self.apart and (answers.function.correlation or 0.0) >= OUTPUTS_ALIKE)
        )


OUTPUTS_ALIKE: Final = 0.8
"""Outputs whose movements over random probes correlate by this were not shown to be something else: a factor on all of
them, or noise where data hardly are, changes what they are and not what they say."""

FOUND: Final = ("equal", "contained", "derived")
AWAY: Final = ("unrelated", "not decided")
SHOWN: Final = ("read", "no key")
HIDDEN: Final = ("unread", "void")
ANY_TIME: Final = ("first", "not first", "nothing shown")

AFTERWARDS: Final = "references and keys can be made afterwards, and no claim shows that these were there first"

SHARED: Final = (
    "a key for what the suspect has from elsewhere, a public model or the order of inputs or classes, reads as well"
)

TABLE: Final = (
    Rule(Proved, FOUND, SHOWN, ("first",), "the suspect holds the owner's network, and its claim was there first"),
    Rule(Inconclusive, FOUND, SHOWN, ("not first",), "the networks are related, but this claim was not the first"),
    Rule(Matches, FOUND, SHOWN, ("nothing shown",), f"the suspect holds the owner's network; {AFTERWARDS}"),
    Rule(Inconclusive, FOUND, ("void",), ANY_TIME, "the owner's network is in the suspect, but the key is void"),
    Rule(Inconclusive, FOUND, ("unread",), ANY_TIME, "the owner's network is in the suspect, but no mark was read"),
    Rule(Inconclusive, AWAY, ("read",), ("first",), "a key that was claimed first reads its message from a network "
         f"that was not shown to be the owner's; {SHARED}"),
    Rule(Inconclusive, AWAY, ("read",), ("not first", "nothing shown"), "a key reads its message from a network that "
         "was not shown to be the owner's; such a key can be made afterwards"),
    Rule(Refuted, ("unrelated",), (*HIDDEN, "no key"), ANY_TIME, "the suspect is another network, and it computes "
         "something else", function=("disagree",), apart=True),
    Rule(Inconclusive, ("unrelated",), (*HIDDEN, "no key"), ANY_TIME, "the suspect's weights are not the owner's, but "
         "its outputs were not shown to be something else"),
    Rule(Inconclusive, ("not decided",), (*HIDDEN, "no key"), ANY_TIME, "whether it is the owner's network was not "
         "decided"),
)  # fmt: skip
"""The first line that holds decides. Every combination of answers is in one of them."""


def decide(answers: Answers, unusual: Sequence[str] = ()) -> Verdict:
    """From answers to a verdict.

    Args:
        answers: The four answers.
        unusual: What was asked for beyond the standard options; the strong words are then gone.
    """
    rule = next(rule for rule in TABLE if rule.holds(answers))
    reasons = [answers.network.reason, answers.function.reason]
    reasons += [answers.mark.reason] if answers.mark.answer != "no key" else []
    reasons += [answers.priority.reason] if answers.priority.claims else []
    told = "; ".join(reasons)
    if unusual and rule.verdict in (Proved, Matches):
        return Inconclusive(f"non-standard options ({'; '.join(unusual)}) give no strong word; {told}")
    return rule.verdict(f"{rule.says}; {told}")


def table_lines(cell: Callable[[Sequence[str]], str]) -> list[tuple[str, ...]]:
    """The table for people: one row of texts for every line."""
    return [
        (
            cell(rule.network),
            cell(rule.function) + ", and move apart" * rule.apart,
            cell(rule.mark),
            cell(rule.priority),
            rule.verdict.kind,
            rule.says,
        )
        for rule in TABLE
    ]
