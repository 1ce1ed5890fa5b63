"""The verdict in words that need no training in the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from canon.report.words import count, number, odds, percent

Kind = Literal["proved", "refuted", "inconclusive", "recovered", "clean"]


@dataclass(frozen=True)
class Fact:
    """A figure with what it is."""

    value: str
    name: str


@dataclass(frozen=True)
class Story:
    """What stands at the top of the page."""

    kind: Kind
    word: str
    """The verdict in one word."""

    headline: str
    lead: tuple[str, ...]
    facts: tuple[Fact, ...]
    limits: tuple[str, ...]
    """What has not been shown."""


def tell(document: Mapping[str, Any]) -> Story:
    """The story of a verification."""
    verdict, recovery = document["verdict"], document["recovery"]
    equal = _equal(document)
    kind, word, headline = _headline(document, equal)
    lead = [
        _question(document), *_disguise(recovery), *_folding(document), *_comparison(document, equal),
        *_message(document),
    ]  # fmt: skip
    if kind == "inconclusive":
        lead.append(f"That is not enough to decide: {verdict['reason']}.")
    return Story(kind, word, headline, tuple(lead), tuple(_facts(document, equal)), tuple(_limits(document)))


def tell_recovery(document: Mapping[str, Any]) -> Story:
    """The story of a recovery without a verdict."""
    recovery = document["recovery"]
    gone = recovery["removed"] + recovery["merged"]
    agreed = recovery["agreement"]
    if not gone and not recovery["cropped"]:
        needed = "Every channel of the model is needed as it is. Recovery changed nothing."
        return Story("clean", "Nothing found", "No sign of structural obfuscation", (needed,), (), (_ORDER,))
    lead = [*_disguise(recovery)]
    if agreed is not None:
        lead.append(f"The compact model computes the same: its outputs differ by {number(agreed)} of the largest.")
    lead.append("This says what was done to the model, not whose model it is; that takes a comparison.")
    return Story("recovered", "Recovered", "Structural obfuscation was found and removed", tuple(lead),
                 tuple(_recovery_facts(recovery)), (_AMBIGUOUS,))  # fmt: skip


_AMBIGUOUS = (
    "Channels that do nothing can also be left by honest pruning. The weights alone cannot tell who put them there."
)

_ORDER = (
    "Channels can be put in another order and scale without leaving a trace in the model itself. Only a comparison "
    "with the owner's model or layout key shows that."
)


def _equal(document: Mapping[str, Any]) -> bool:
    certificate, alignment = document["certificate"], document["alignment"]
    if certificate is not None:
        return bool(certificate["passed"])
    tolerance = document["options"].get("tolerance", 1e-3)
    worst = None if alignment is None else alignment["worst"]
    return worst is not None and alignment["established"] and worst <= tolerance


def _owner(document: Mapping[str, Any]) -> str:
    return "the owner's model" if document["certificate"] is not None else "the registered model"


def _headline(document: Mapping[str, Any], equal: bool) -> tuple[Kind, str, str]:
    verdict, recovery = document["verdict"], document["recovery"]
    disguised = recovery is not None and bool(recovery["removed"] + recovery["merged"])
    if verdict["kind"] == "proved" and verdict["tier"] == 1:
        return "proved", "Proved", f"The suspect is {_owner(document)}{', in disguise' if disguised else ''}"
    if verdict["kind"] == "proved":
        return "proved", "Proved", "The suspect carries the owner's mark"
    if verdict["kind"] == "refuted" and equal:
        return "refuted", "Refuted", "The key's message is not in this model"
    if verdict["kind"] == "refuted":
        return "refuted", "Refuted", f"The suspect is not {_owner(document)}"
    return "inconclusive", "Not decided", "Neither proved nor refuted"


def _question(document: Mapping[str, Any]) -> str:
    against = _owner(document)
    if document["watermark"] is None:
        return f"The question was whether the suspect is {against}, whatever was done to hide it."
    return f"The question was whether the suspect is {against} and carries the owner's secret message."


def _disguise(recovery: Mapping[str, Any] | None) -> list[str]:
    if recovery is None:
        return ["The suspect was given as recovered already and was compared as it is."]
    gone = recovery["removed"] + recovery["merged"]
    if not gone:
        return ["No channel of the suspect is superfluous: nothing had to be removed."]
    before, after = recovery["parameters_before"], recovery["parameters_after"]
    return [
        f"{count(gone, 'channel')} had been added to the suspect without changing what it computes. Canon found them "
        f"from the suspect alone and took them out: {number(before)} parameters became {number(after)}."
    ]


def _folding(document: Mapping[str, Any]) -> list[str]:
    form = document["form"]
    folded, added = len(form["restored"]), len(form["folded"])
    lines = []
    if folded:
        lines.append(
            f"{count(folded, 'normalisation layer')} had been folded into the layers before them. The models were "
            "compared with these folded on both sides."
        )
    if added:
        lines.append(
            f"{count(added, 'normalisation layer')} stood where {_owner(document)} has none, and went into the layers "
            "before them."
        )
    return lines


def _comparison(document: Mapping[str, Any], equal: bool) -> list[str]:
    certificate, alignment = document["certificate"], document["alignment"]
    if equal and certificate is not None:
        marked = "that bear the message " if document["watermark"] is not None else ""
        return [
            f"What remains equals the owner's model, up to the order and scale of channels: the "
            f"{count(len(certificate['layers']), 'layer')} {marked}differ from the owner's by at most "
            f"{number(certificate['max_rel_err'])} of their size, where {number(certificate['tolerance'])} is allowed."
        ]
    if equal:
        return [
            f"What remains has the layout that the owner registered: no channel is further from its registered "
            f"fingerprint than {number(alignment['worst'])} of its size."
        ]
    if alignment is None:
        layers = document["network"]
        other = sum(layer["recovered"] != layer["reference"] for layer in layers)
        return [
            f"What remains has another number of channels than {_owner(document)} in {other} of "
            f"{count(len(layers), 'layer')}, so the two cannot be compared channel by channel."
        ]
    share = f"{percent(alignment['distinct'])} of its channels have one clear counterpart in {_owner(document)}"
    if alignment["established"]:
        return [f"It resembles {_owner(document)} ({share}), but is not equal to it."]
    return [f"It does not resemble {_owner(document)}: {share}. Half would be needed to call the two related."]


def _message(document: Mapping[str, Any]) -> list[str]:
    mark, refused = document["watermark"], document["form"]["watermark_not_read"]
    if mark is None:
        return [] if refused is None else [f"The message was not read: {refused}."]
    read = f"The owner's key reads {mark['matched']} of {mark['total']} bits of the message"
    if mark["p_value"] <= mark["alpha"]:
        return [f"{read}. Luck does as well once in {odds(mark['p_value']).removeprefix('1 in ')} tries."]
    return [f"{read}. Luck does as well or better in {odds(mark['p_value'])} of all tries, so this shows nothing."]


def _facts(document: Mapping[str, Any], equal: bool) -> list[Fact]:
    certificate, alignment, mark = document["certificate"], document["alignment"], document["watermark"]
    facts = [] if document["recovery"] is None else _recovery_facts(document["recovery"])[:1]
    if certificate is not None and equal:
        facts.append(Fact(number(certificate["max_rel_err"]), "largest difference from the owner's layers"))
    elif alignment is not None:
        facts.append(Fact(percent(alignment["distinct"]), "of the channels have a clear counterpart"))
    if mark is not None:
        facts.append(Fact(f"{mark['matched']} / {mark['total']}", "bits of the message are right"))
        facts.append(Fact(odds(mark["p_value"]), "chance that luck does as well"))
    elif certificate is not None:
        passed = sum(layer["passed"] for layer in certificate["layers"])
        facts.append(Fact(f"{passed} / {len(certificate['layers'])}", "layers agree with the owner's"))
    return facts


def _recovery_facts(recovery: Mapping[str, Any]) -> list[Fact]:
    gone = recovery["removed"] + recovery["merged"]
    before = sum(space["before"] for space in recovery.get("spaces", ()))
    share = f", {percent(gone / before)} of all" if before and gone else ""
    smaller = 1 - recovery["parameters_after"] / max(1, recovery["parameters_before"])
    return [Fact(number(gone), f"injected channels removed{share}"), Fact(percent(smaller), "of the parameters gone")]


def _limits(document: Mapping[str, Any]) -> list[str]:
    mark, limits = document["watermark"], []
    if document["verdict"]["kind"] == "proved":
        limits.append(
            "It does not say who made the model first, nor when. That rests on who held which file, and since when."
        )
    if mark is not None:
        limits.append(
            "The figure for luck is exact for a message that was drawn at random. A message that somebody chose, such "
            "as a name, deserves less trust than the figure says."
        )
    elif document["verdict"]["kind"] == "proved":
        limits.append("No watermark key was given: equality was shown, and no message was read.")
    lent = document["form"]["from_owner"]
    if lent:
        limits.append(f"Because norms had been folded away, this was taken from the owner's side: {'; '.join(lent)}.")
    if document["verdict"]["kind"] == "inconclusive":
        limits.append("Not decided means not decided: it speaks neither for the owner nor for the suspect.")
    if document["recovery"] is not None and document["recovery"]["removed"]:
        limits.append(_AMBIGUOUS)
    limits.append(
        "This page and its document are not signed. Whoever must be sure repeats the run: the files' digests, the "
        "options and the versions below are all that it takes."
    )
    return limits
