"""Who was first? What a claim shows, to somebody who trusts neither side.

A claim counts if its signature holds, its opening shows everything that this verification uses, and a time-stamp leads
to a root that the verifier was given. It is *first* if that time-stamp is older than every date at which the suspect is
known to have existed: the date that is given, and the claims of the other side that open to the suspect itself.
Whatever fails is said in words, and fails nothing but this answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from typing import Any

from torch import nn

from canon._version import __version__
from canon.claims.canonical import canonical, write_time
from canon.claims.claim import Claim, Statement
from canon.claims.committing import used_things
from canon.claims.keys import public_key
from canon.claims.opening import PLACES, Opening
from canon.claims.presented import Presented, Rival, Used
from canon.claims.things import WORDS, Table, Thing, agrees, differing, reference_thing
from canon.claims.timestamps import Stamp, verify_all
from canon.claims.trust import Trust
from canon.errors import ClaimError, MissingExtraError
from canon.verify.answers import Priority


@dataclass
class _Looked:
    """One claim under examination; filled as far as one gets."""

    role: str
    stamp: Stamp | None = None
    data: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def examine(presented: Presented, used: Used) -> Priority:
    """Answer who was first. Nothing that is wrong with a claim raises; it is in the answer."""
    own = _look(presented, presented.trust, "presented")
    if not own.wrong:
        try:
            own.wrong += _not_opened(presented.opening, used, own.data)
        except ClaimError as error:
            own.wrong.append(str(error))
    rivals = [_rival(rival, presented.trust, used) for rival in presented.rivals]
    answer = _weigh(own, rivals, presented)
    return replace(answer, claims=[{**one.data, "wrong": one.wrong} for one in (own, *rivals)])


def inspect(claim: Claim, opening: Opening | None, trust: Trust) -> dict[str, Any]:
    """What a claim shows on its own: plain data, with everything that is wrong with it under `wrong`."""
    found = _look(Rival(claim, opening), trust, "presented")
    return {**found.data, "wrong": found.wrong}


def _look(brought: Presented | Rival, trust: Trust, role: str) -> _Looked:
    """Signature, opening and time-stamps, each on its own."""
    found = _Looked(role, data={"role": role, "notes": []})
    claim, opening = brought.claim, brought.opening
    if claim is None or brought.fault is not None:
        found.wrong.append(brought.fault or "no claim was given")
        return found
    try:
        statement = claim.check()
        found.data |= _said(statement)
        if opening is not None:
            opening.check(statement)
            found.data["opened"] = [leaf.thing.role for leaf in opening.leaves if leaf.thing.role != "none"]
            found.data["canon"] = next((leaf.thing.content for leaf in opening.of("canon")), None)
        results = verify_all(claim, trust)
    except (ClaimError, MissingExtraError) as error:
        found.wrong.append(str(error))
        return found
    found.data["timestamps"] = [{"wrong": result} if isinstance(result, str) else result.shown() for result in results]
    good = [result for result in results if isinstance(result, Stamp)]
    if not good:
        reasons = [f"time-stamp {i + 1}: {reason}" for i, reason in enumerate(results)]
        found.wrong.append("; ".join(reasons) or "the claim has no time-stamp: nothing shows when it was made")
        return found
    found.stamp = min(good, key=lambda stamp: stamp.latest)
    found.data["time"] = write_time(found.stamp.time)
    if statement.created > found.stamp.latest:
        found.wrong.append("the claim says that it was made after it was stamped")
    elif (found.stamp.time - statement.created).days >= 1:
        said = write_time(statement.created)
        found.data["notes"].append(f"the claim says {said} of itself, which counts for nothing: its time-stamp does")
    return found


def _said(statement: Statement) -> dict[str, Any]:
    return {
        "owner": public_key(statement.owner).keyid,
        "key": statement.owner,
        "root": statement.root.hex(),
        "leaves": statement.leaves,
        "watermark_places": statement.leaves - len(PLACES),
        "created": write_time(statement.created),
    }


def _not_opened(opening: Opening | None, used: Used, data: dict[str, Any]) -> list[str]:
    """What this verification uses and the claim does not show."""
    if opening is None:
        return ["no opening was given: nothing shows what the claim commits to"]
    things, table = used_things(used.reference, used.layout_key, used.watermark_keys, used.options, used.files)
    wrong = [reason for thing in things for reason in _mismatch(thing, table, opening, used)]
    if not wrong and not any(thing.role != "options" for thing in things):
        wrong = ["this verification uses nothing that a claim could have fixed"]
    committed = data.get("canon")
    if committed is not None and committed != __version__:
        data["notes"].append(f"committed with Canon {committed!s:.40}, verified with {__version__}")
    elif committed is None:
        wrong.append(f"the opening does not show {WORDS['canon']}")
    return wrong


def _mismatch(thing: Thing, table: Table | None, opening: Opening, used: Used) -> list[str]:
    word = WORDS[thing.role]
    leaves = opening.of(thing.role)
    if not leaves:
        return [f"the opening does not show {word}: it was not committed to, or was left out"]
    if any(agrees(leaf.thing, thing) for leaf in leaves):
        return []
    committed = leaves[0].thing.content
    if thing.role == "reference" and "model_signing" in committed:
        return _unsigned(committed["model_signing"], used)
    if thing.role == "reference" and table is not None and opening.tensors is not None:
        return [f"the reference is not the one that was committed to: {differing(opening.tensors, table)}"]
    if thing.role == "options":
        return [f"the options are not those that were committed to: {_other_options(committed, thing.content)}"]
    return [f"{word} is not one that was committed to"]


def _unsigned(digest: str, used: Used) -> list[str]:
    """Why a reference is not part of the signed model that was committed to."""
    if used.signature is None:
        return ["the claim commits to a model's OpenSSF signature, which was not given"]
    if used.signature.digest != digest:
        return ["the model's OpenSSF signature is not the one that was committed to"]
    if not any(used.signature.covers(file) for file in used.files.get("reference", ())):
        return ["the reference's file is not among those of the signed model that was committed to"]
    return []


def _other_options(committed: Mapping[str, Any], present: Mapping[str, Any]) -> str:
    names = [n for n in sorted(committed.keys() | present.keys()) if _value(committed, n) != _value(present, n)]
    return ", ".join(f"'{name:.40}' is {_value(present, name)} and was {_value(committed, name)}" for name in names[:3])


def _value(options: Mapping[str, Any], name: str) -> str:
    return canonical(options[name]).decode()[:60] if name in options else "standard"


def _rival(rival: Rival, trust: Trust, used: Used) -> _Looked:
    """A rival counts if it opens to the suspect itself, or to a model that the suspect was made from."""
    found = _look(rival, trust, "rival")
    if found.wrong:
        return found
    if rival.opening is None:
        found.wrong.append("no opening was given: nothing shows what the claim commits to")
        return found
    files = used.files.get("suspect", ())
    if used.suspect is not None and _opens_to(rival.opening, used.suspect, files[0] if files else None):
        found.data["opens_to"] = "the suspect"
    elif rival.reference is None or not _opens_to(rival.opening, rival.reference):
        found.wrong.append("the claim does not open to the suspect: it commits to another model")
    elif used.related is None or not used.related(rival.reference):
        found.wrong.append("the claim opens to a model that the suspect was not shown to be made from")
    else:
        found.data["opens_to"] = "a model that the suspect was made from"
    return found


def _opens_to(opening: Opening, model: nn.Module, file: str | None = None) -> bool:
    thing, _ = reference_thing(model, file)
    return any(agrees(leaf.thing, thing) for leaf in opening.of("reference"))


def _weigh(own: _Looked, rivals: Sequence[_Looked], presented: Presented) -> Priority:
    if own.wrong:
        return Priority("nothing shown", "; ".join(own.wrong))
    assert own.stamp is not None, "a claim without a time-stamp has something wrong"
    stamp, date = own.stamp, presented.suspect_date
    when = f"{stamp.time:%Y-%m-%d %H:%M:%S} UTC, by {stamp.authority}"
    known: list[tuple[datetime, datetime, str]] = []
    if date is not None:
        if date > presented.trust.moment:
            return Priority("nothing shown", "the suspect's date lies in the future")
        since = date.astimezone(UTC)
        told = f"{since:%Y-%m-%d}" + f"{since: %H:%M:%S} UTC" * (since.time() != time.min)
        known.append((date, date, f"the suspect is known since {told} ({presented.suspect_date_source})"))
    for rival in rivals:
        if not rival.wrong and rival.stamp is not None:
            text = f"another claim to the suspect was stamped {rival.stamp.time:%Y-%m-%d %H:%M:%S} UTC"
            known.append((rival.stamp.earliest, rival.stamp.latest, text))
    if not known:
        return Priority(
            "nothing shown",
            f"the claim was stamped {when}, and nothing is known of when the suspect existed: give its date and source",
        )
    for _, latest, text in known:
        if stamp.earliest >= latest:
            return Priority("not first", f"the claim was stamped {when}, and {text}")
    for earliest, _, text in known:
        if stamp.latest >= earliest:
            return Priority("nothing shown", f"the claim was stamped {when}, and {text}: too close to tell")
    return Priority("first", f"the claim was stamped {when}, before " + " and ".join(text for *_, text in known))
