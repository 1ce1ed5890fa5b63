"""The verdict in words that need no training in the field, and what it does not show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from canon.report.answers import Fact, Tone
from canon.report.words import count, number, percent, sentence
from canon.verify.answering import answers_of, unusual_options
from canon.verify.verdict import FOUND, TABLE, Rule

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Story:
    """A verdict, or what recovery found."""

    kind: str
    """Chooses the sign."""

    tone: Tone
    word: str
    """The verdict in one word."""

    headline: str
    lead: tuple[str, ...]
    limits: tuple[str, ...]
    """What has not been shown."""

    facts: tuple[Fact, ...] = ()


TONES: Final[Mapping[str, Tone]] = {"proved": "sure", "matches": "holds", "refuted": "against", "inconclusive": "open"}

MEANINGS: Final = {
    "proved": "Proved means: what a claim had fixed before the suspect existed is in the suspect.",
    "matches": "Matches means: the owner's network is in the suspect. It does not mean that the owner had it first.",
    "refuted": "Refuted rests on two differences, each shown by itself: in the weights and in the outputs.",
    "inconclusive": "Inconclusive speaks for neither side: neither a match nor a difference was shown as it must be.",
}

NOT_ALL: Final = (
    "Inconclusive speaks for neither side: the network was found, and something else that was brought does not hold."
)


def rule_of(document: Document) -> Rule:
    """The line of the table that the answers lead to."""
    answers = answers_of(document)
    return next(rule for rule in TABLE if rule.holds(answers))


def tell(document: Document) -> Story:
    """The verdict of a verification."""
    kind, rule = document["verdict"]["kind"], rule_of(document)
    unusual = unusual_options(document["options"])
    headline, *rest = rule.says.split("; ")
    lead = [*map(sentence, rest)]
    if kind != rule.verdict.kind:
        headline = "options beyond the standard ones give no strong word"
        lead = [f"With these answers and standard options the verdict would be: {rule.verdict.kind}."]
    if unusual:
        lead.append(f"Asked for: {'; '.join(unusual)}.")
    found = kind == "inconclusive" and not unusual and document["answers"]["network"]["answer"] in FOUND
    lead.append(NOT_ALL if found else MEANINGS[kind])
    lead += [sentence(note) for note in document["notes"]]
    return Story(
        kind, TONES[kind], kind.capitalize(), sentence(headline).rstrip("."), tuple(lead), tuple(_limits(document))
    )


def tell_recovery(document: Document) -> Story:
    """The story of a recovery without a verdict."""
    recovery = document["recovery"]
    gone = recovery["removed"] + recovery["merged"]
    agreed = recovery["agreement"]
    if not gone and not recovery["cropped"]:
        unchanged = "Recovery looked at the model alone, found nothing that it could take out, and changed nothing."
        return Story(
            "clean", "neutral", "Nothing found", "No sign of structural obfuscation", (unchanged,), (_UNSEEN, _ORDER)
        )
    before, after = recovery["parameters_before"], recovery["parameters_after"]
    lead = [
        f"{count(gone, 'channel')} of the model can go without changing what it computes. Canon found them from the "
        f"model alone and took them out: {number(before)} parameters became {number(after)}."
    ]
    if agreed is not None:
        lead.append(f"The compact model computes the same: its outputs differ by {number(agreed)} of the largest.")
    lead.append("This says what was done to the model, not whose model it is; that takes a comparison.")
    spaces = sum(space["before"] for space in recovery["spaces"])
    share = f", {percent(gone / spaces)} of all" if spaces and gone else ""
    facts = (
        Fact(number(gone), f"channels taken out{share}"),
        Fact(percent(1 - after / max(1, before)), "of the parameters gone"),
    )
    return Story(
        "recovered", "neutral", "Recovered", "Structural obfuscation was found and removed", tuple(lead),
        (_AMBIGUOUS, _UNSEEN), facts,
    )  # fmt: skip


_AMBIGUOUS = (
    "Channels that do nothing can also be left by honest pruning. The weights alone cannot tell who put them there."
)

_UNSEEN = (
    "Recovery takes out only what it can show to be superfluous from the weights alone. What it leaves may still be "
    "superfluous."
)

_ORDER = (
    "Channels can be put in another order and scale without leaving a trace in the model itself. Only a comparison "
    "with the owner's model or layout key shows that."
)


def _limits(document: Document) -> list[str]:
    mark, containment, limits = document["watermark"], document["containment"], []
    if document["answers"]["priority"]["answer"] != "first":
        limits.append(
            "It does not say who made the model first, nor when. References and keys can be made afterwards; who held "
            "which file, and since when, must be shown otherwise."
        )
    if mark is not None and mark["refused"] is None:
        limits.append(
            "The figure for luck holds for a message that was drawn at random. A message that somebody chose, such as "
            "a name, deserves less trust than the figure says."
        )
    if containment is not None and not containment["ancestors"]:
        limits.append(
            "Two networks that were trained on from one public model contain each other's channels. No such ancestor "
            "was given here, so that what both took from one was not set apart."
        )
    lent = document["form"]["from_owner"]
    if lent:
        limits.append(f"Because norms had been folded away, this was taken from the owner's side: {'; '.join(lent)}.")
    if document["recovery"] is not None and document["recovery"]["removed"]:
        limits.append(_AMBIGUOUS)
    limits.append(
        "The page is made from a document that was checked against itself: the verdict follows from its figures. That "
        "the figures are true shows a repeated run; the digests, options, versions and command below are what it takes."
    )
    return limits
