"""The four questions, each with its answer in words that need no training in the field.

The words follow from the figures alone, and the weaker one is chosen where two would do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from canon.report.words import count, number, odds, percent, sentence
from canon.verify.answering import DISAGREE, agreeing, quoted

Document = Mapping[str, Any]
Tone = Literal["sure", "holds", "against", "open", "neutral"]


@dataclass(frozen=True)
class Fact:
    """A figure with what it is."""

    value: str
    name: str


@dataclass(frozen=True)
class Question:
    """One question, answered."""

    id: str
    asks: str
    word: str
    tone: Tone
    says: str
    """One plain sentence."""

    facts: tuple[Fact, ...]
    uncovered: str
    """What the answer does not cover."""


ASKS: Final = {
    "network": "Same network?",
    "function": "Same function?",
    "mark": "Carries the mark?",
    "priority": "Who was first?",
}

TONES: Final[Mapping[str, Tone]] = {
    "equal": "holds", "contained": "holds", "derived": "holds", "unrelated": "against", "not decided": "open",
    "agree": "holds", "disagree": "against", "read": "holds", "unread": "open", "void": "open", "no key": "neutral",
    "first": "holds", "not first": "against", "nothing shown": "neutral",
}  # fmt: skip
"""How an answer is coloured. Only what was shown is green or red."""


def owner_of(document: Document) -> str:
    """What the suspect was compared with."""
    return str(document["function"]["against"])


def questions(document: Document) -> tuple[Question, ...]:
    """All four, in order."""
    sections = {"network": _network, "function": _function, "mark": _mark, "priority": _priority}
    found = []
    for name, tell in sections.items():
        answer = document["answers"][name]["answer"]
        says, facts, uncovered = tell(document)
        word = answer[:1].upper() + answer[1:]
        found.append(Question(name, ASKS[name], word, TONES[answer], sentence(says), tuple(facts), sentence(uncovered)))
    return tuple(found)


Told = tuple[str, list[Fact], str]


def _network(document: Document) -> Told:
    tellers: dict[str, Callable[[Document], Told]] = {
        "equal": _equal, "contained": _contained, "derived": _derived, "unrelated": _unrelated,
        "not decided": _not_decided,
    }  # fmt: skip
    answer = document["answers"]["network"]["answer"]
    weakened = answer in ("contained", "derived") and document["containment"] is None
    return _weakened(document) if weakened else tellers[answer](document)


FORMS: Final = {
    "given": "",
    "folded": ", with normalisation folded into the layers on both sides",
    "canonical": ", once channels that do nothing are left out on both sides",
}


def _equal(document: Document) -> Told:
    equality, precision = document["equality"], document["precision"]
    says = (
        f"Every number of {owner_of(document)} is in the suspect, up to the order and scale of channels"
        f"{FORMS[equality['form']]}"
    )
    facts = [
        Fact(number(equality["numbers"]), f"numbers compared, {percent(equality['share'])} of those in use"),
        Fact(number(equality["worst"]), f"at most between them ({number(equality['tolerance'])} is allowed)"),
    ]
    uncovered = "numbers that the forward pass does not use"
    if precision["compared"] != "float32":
        uncovered += f", and digits finer than {precision['compared']} has"
    if document["settings"] is not None and document["settings"]["problem"] is not None:
        uncovered += ", and settings of operations, which were not compared"
    return says, facts, uncovered


def _weakened(document: Document) -> Told:
    """All numbers are the owner's; what they are computed with, or stands beside them, is not."""
    _, facts, uncovered = _equal(document)
    return document["answers"]["network"]["reason"], facts, uncovered


def _located(document: Document) -> list[Fact]:
    containment = document["containment"]
    facts = [Fact(percent(containment["coverage"]), "of the owner's channels found, distinctly and beyond chance")]
    if containment["answer"] == "derived":
        layers = containment["layers"]
        most = sum(2 * layer["distinct"] >= layer["channels"] for layer in layers)
        facts.append(Fact(f"{most:,} of {len(layers):,}", "layers have most of theirs"))
    if containment["median"] is not None and containment["answer"] in ("contained", "derived"):
        facts.append(Fact(number(containment["median"]), "of their size is the typical change"))
    return facts


def _ancestry(document: Document) -> str:
    updates = document["containment"]["ancestors"]
    if not updates:
        return "whether both were made from one public model: no ancestor was given"
    return f"ancestors other than the {count(len(updates), 'one')} given"


def owned(space: Document, answer: str) -> int:
    """How many of the owner's channels of a space the suspect has.

    Where the order is given, every channel is held against the one in its place, and counts only if it is like it.
    """
    return int(space["distinct"] if space["pinned"] and answer != "contained" else space["found"])


def _contained(document: Document) -> Told:
    says = "the whole of the owner's network was found inside the suspect, and what stands around it does nothing"
    return says, _located(document), _ancestry(document)


def _derived(document: Document) -> Told:
    spaces = document["containment"]["spaces"]
    channels = sum(space["owner"] for space in spaces)
    lost = channels - sum(owned(space, "derived") for space in spaces)
    says = "the owner's network was found inside the suspect, with changes"
    if lost:
        says += f": {lost:,} of its {count(channels, 'channel')} {'was' if lost == 1 else 'were'} not found"
    return says, _located(document), _ancestry(document)


def _unrelated(document: Document) -> Told:
    says = (
        "the owner's network was not found in the suspect: its channels resemble the owner's no more than those of a "
        "stranger do"
    )
    return says, _located(document), "a network that was trained to imitate another one's outputs"


def _not_decided(document: Document) -> Told:
    reason = document["answers"]["network"]["reason"]
    facts = [] if document["containment"] is None else _located(document)
    return f"this was not decided: {reason}", facts, "everything: this answer speaks for neither side"


def _function(document: Document) -> Told:
    answer, comparisons = document["answers"]["function"], document["function"]["comparisons"]
    total = sum(answer["probes"].values())
    own = [name for name in answer["probes"] if name != "random"]
    against = f"those of {owner_of(document)}"
    known = [item for item in comparisons if item["difference"] is not None]
    says = {
        "agree": f"the outputs agree with {against} on all {count(total, 'probe')}",
        "disagree": f"the outputs differ from {against}",
        "not decided": f"the outputs come near to {against}, but not near enough to call them equal",
    }[answer["answer"]]
    if len(known) < len(comparisons):
        problem = next(item for item in comparisons if item["difference"] is None)
        says = f"not all outputs could be compared: {quoted(problem['problem'])}"
    facts = []
    if answer["difference"] is not None:
        facts.append(
            Fact(number(answer["difference"]), f"of their range is the largest difference ({_limit(document)})")
        )
    if answer["same_decision"] is not None:
        facts.append(Fact(percent(answer["same_decision"]), "same decision"))
    sources = ", ".join(f"{many:,} {name}" for name, many in answer["probes"].items())
    facts.append(Fact(number(total), f"probes: {sources}" if own else "random probes"))
    uncovered = "inputs that are not like these probes" + ("" if own else ", which were drawn at random")
    return says, facts, uncovered


def _limit(document: Document) -> str:
    """What the difference is held against."""
    agree = agreeing(document["function"], document["precision"])
    if document["answers"]["function"]["answer"] == "disagree":
        return f"more than {number(max(DISAGREE, agree))} disagrees"
    return f"up to {number(agree)} agrees"


PLACES: Final = {
    "aligned": "after recovery, with its channels in the owner's order",
    "extracted": "after the owner's network was taken out of what surrounds it",
    "recovered": "after recovery, with its channels in the order in which they stood",
}


def _mark(document: Document) -> Told:
    answer, mark = document["answers"]["mark"]["answer"], document["watermark"]
    if mark is None:
        return "no watermark key was given, so no mark was looked for", [], "any mark"
    if mark["refused"] is not None:
        return f"the mark was not read: {quoted(mark['refused'])}", [], "whether the mark is there"
    controls = mark["controls"]
    most = max(controls["matched"])
    facts = [
        Fact(f"{mark['matched']:,} of {mark['total']:,}", "bits right"),
        Fact(odds(mark["p_value"]), "by luck"),
        Fact(f"{most:,} of {mark['total']:,}", f"in the best of {controls['count']} models without the mark"),
    ]
    if answer == "read":
        return (
            f"the key's message was read from the suspect {PLACES[mark['read_from']]}",
            facts,
            "whether the key is older than the suspect: keys can be made afterwards",
        )
    if answer == "void":
        says = f"this key shows nothing, whatever it reads: {controls['reason']}"
        return says, [facts[0], facts[2]], "whether the owner's network or another mark is in the suspect"
    return _unread(document), facts, "marks of other keys; an unread mark does not speak against the network"


def _unread(document: Document) -> str:
    mark = document["watermark"]
    if 2.0 ** -mark["total"] > mark["alpha"]:
        return f"the message of {count(mark['total'], 'bit')} is too short to tell a mark from luck"
    if mark["read_from"] == "recovered":
        return (
            "the key's message was not read. The weights do not say in which order the channels stood, so it may be "
            "there unread"
        )
    says = "the key's message is not in the suspect, where this key looks for it"
    if document["function"]["against"] == "the reference":
        says += f". From the owner's own model the key reads a similarity of {percent(mark['tier2']['clean'])}"
    return says


def _priority(document: Document) -> Told:
    answer = document["answers"]["priority"]
    facts = (
        [Fact(number(len(answer["claims"])), "claims examined" if len(answer["claims"]) > 1 else "claim examined")]
        if answer["claims"]
        else []
    )
    uncovered = {
        "first": "who made the model; a claim shows who could show it at that time",
        "not first": "claims that were not presented here",
        "nothing shown": "who was first: references and keys can be made afterwards",
    }[answer["answer"]]
    return answer["reason"], facts, uncovered
