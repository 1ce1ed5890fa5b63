"""What was located in a suspect, how outputs agreed and who was first, each held against its own figures.

Words that a document takes over from elsewhere (`contained`, `derived`, `first`) must be those that its figures allow:
who changes a word, and the answers and the verdict with it, has to change what was counted and measured as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from canon.api.containing import FIXED_ALIKE
from canon.containment.answer import AGREED, CLOSE, DERIVED, SAME_UPDATE, STRANGER
from canon.errors import VerificationError
from canon.normal.housing import SAME_OUTPUTS
from canon.verify.answering import AGREE, agreeing
from canon.verify.precision import ROUNDINGS, SINGLE

Document = Mapping[str, Any]

ANCHORS: Final = {"reference": "the reference", "layout_key": "the registered model"}
"""By role of an input: whom the suspect's outputs are compared with."""

COMPARED: Final = ("equality", "alignment", "certificate", "containment")
"""What there is only where networks could be compared."""


def structure_holds(document: Document) -> None:
    """Networks that cannot be compared were not; the others were looked for unless they are equal as they are."""
    if document["structure"] is not None:
        for name in COMPARED:
            _must(document[name] is None, f"the networks cannot be compared, yet there is '{name}'")
        return
    equality, comparisons = document["equality"], document["function"]["comparisons"]
    _must(equality is not None, "the networks can be compared, yet nothing says how far they are equal")
    limit = agreeing(document["function"], document["precision"])
    gaps = [item["difference"] for item in comparisons]
    agree = bool(gaps) and all(gap is not None and gap <= limit for gap in gaps)
    settled = bool(equality["passed"]) and not equality["alone"] and agree
    _must((document["containment"] is None) == settled, "the owner's network is looked for where equality fails")
    if equality["alone"]:
        contained = document["containment"]["answer"] == "contained" and document["options"]["layers"] is None
        _must(contained, "nothing stands beside the owner's network, yet it is not contained")


def program_holds(document: Document) -> None:
    """A program is the owner's if nothing is missing and both compute the same."""
    program = document["program"]
    if program is None:
        return
    near = program["difference"] is not None and 0 <= _number(program["difference"]) <= SAME_OUTPUTS
    exact = bool(program["whole"]) and not program["missing"] and near
    _must(program["exact"] is exact, "another program is the owner's, or is not, against its own figures")
    _must(
        document["structure"] is None, "the networks cannot be compared, yet one was brought into the other's program"
    )
    for name in ("steps", "missing", "surplus"):
        _must(all(isinstance(item, str) for item in program[name]), f"the program's '{name}' are no words")


def settings_holds(document: Document) -> None:
    """Settings are held against the owner's where all of its network is said to be there."""
    settings, located = document["settings"], document["containment"]
    if settings is not None:
        _must(document["structure"] is None, "the networks cannot be compared, yet settings were")
        told = settings["problem"] is None or not settings["different"]
        _must(told, "settings differ, yet they were not compared")
        same = [item["what"] for item in settings["different"] if item["owner"] == item["suspect"]]
        _must(not same, "a setting differs from one of the same value")
        return
    whole = document["structure"] is None and (located is None or located["answer"] == "contained")
    _must(not whole, "the owner's network is there, yet nothing says with which settings")


def function_holds(document: Document) -> None:
    """A difference is a number, or there is a reason why there is none."""
    found = [*document["function"]["comparisons"], *document["function"]["recovered"]]
    anchors = [name for role, name in ANCHORS.items() if role in document["inputs"]]
    _must(anchors == [document["function"]["against"]], "outputs were compared with what was not given")
    located, rounding = document["containment"], document["function"].get("rounding")
    _must(rounding is None or _number(rounding) >= 0, "outputs are moved by less than nothing")
    sources = [item["source"] for item in document["function"]["comparisons"]]
    _must(len(set(sources)) == len(sources), "outputs were compared twice on the same probes")
    drawn = "random" in sources or document["function"]["against"] != "the reference"
    _must(drawn, "outputs were compared on no random probes, which are always drawn")
    apart = any((item["difference"] or 0) > AGREE for item in document["function"]["comparisons"])
    asked = document["precision"]["epsilon"] > SINGLE or apart
    _must(asked or not rounding, "outputs are moved by rounding, yet both models are exact and agree")
    for item in [*found, *(located["function"] if located is not None else ())]:
        difference, same, problem = item["difference"], item["same_decision"], item["problem"]
        told = problem is None or isinstance(problem, str)
        _must(told and (difference is None) == (problem is not None), "no difference of outputs, and no reason why")
        _must(difference is None or _number(difference) >= 0, "a difference of outputs is negative")
        _must(same is None or 0 <= _number(same) <= 1, "a share of decisions is none")
        _must(difference is None or item["probes"] > 0, "outputs were compared on no probes")
        moves = item.get("correlation")
        _must(moves is None or abs(_number(moves)) <= 1.001, "a correlation is none")


def recovery_holds(document: Document) -> None:
    """What went is counted space by space, and what was not recovered was not compared."""
    recovery, compared = document["recovery"], document["function"]["recovered"]
    _must((recovery is None) == (not compared), "a recovered model was compared, or not, against what was recovered")
    if recovery is None:
        return
    _must(bool(document["options"]["recover"]), "recovery was not asked for, and yet there is one")
    counts = [space["counts"] for space in recovery["spaces"]]
    merged = sum(found.get("duplicate", 0) for found in counts)
    _must(recovery["merged"] == merged, "other channels were merged")
    _must(recovery["removed"] == sum(sum(x.values()) for x in counts) - merged, "other channels were removed")
    _must(all(0 <= s["after"] <= s["before"] for s in recovery["spaces"]), "recovery added channels")


def containment_holds(document: Document) -> None:
    """The word is one that coverage, residuals and agreement allow, and these are those of layers and spaces."""
    located = document["containment"]
    if located is None:
        return
    word, layers, spaces = located["answer"], located["layers"], located["spaces"]
    _must(word in ("contained", "derived", "unrelated", "not decided"), "no such word for what was located")
    for item in (*layers, *spaces):
        most = item["channels" if "channels" in item else "owner"]
        _must(0 <= item["distinct"] <= item["found"] <= most, f"more of '{item['name']!s:.60}' was found than there is")
    for layer in layers:
        _must(_ordered(layer), f"the residuals of '{layer['name']!s:.60}' are not in order")
    for space in spaces:
        counted = space["found"] + space["copies"] + space["surplus"]
        _must(counted == space["suspect"], f"the channels of '{space['name']!s:.60}' do not add up")
    found = [layer for layer in layers if layer["found"]]
    medians = sorted(layer["median"] for layer in found)
    _must(located["residual"] == max((layer["worst"] for layer in found), default=None), "another worst residual")
    _must(located["median"] == (medians[len(medians) // 2] if medians else None), "another median residual")
    _must(all(span["spanned"] <= span["channels"] for span in located["spans"]), "more is spanned than was tested")
    _must(located["missing"] == sum(s["owner"] - s["found"] for s in spaces), "other channels are missing")
    coverage, deep = _number(located["coverage"]), _number(located["deep"])
    _must(0 <= coverage <= 1 and 0 <= deep <= 1, "a coverage is no share")
    _must(max(coverage, deep) == 0 or any(s["distinct"] for s in spaces), "there is a coverage, and nothing was found")
    _word(located, word, coverage, deep, max(CLOSE, ROUNDINGS * document["precision"]["epsilon"]))
    _found(located, layers)
    if document["equality"] is not None:
        _must(located["tolerance"] == document["equality"]["tolerance"], "there are two tolerances")


def _word(located: Document, word: str, coverage: float, deep: float, close: float) -> None:
    """The words that coverage allows; the weaker one is always allowed."""
    if word == "unrelated":
        _must(deep <= STRANGER, f"{deep:.2f} of the channels were found, which is no stranger")
    if word not in ("contained", "derived"):
        return
    tested = sum(span["channels"] for span in located["spans"])
    spanned = tested > 0 and any(span["spanned"] for span in located["spans"])
    enough = deep >= DERIVED or word == "contained" or spanned
    _must(enough, f"{deep:.2f} of the channels were found, which is not enough for '{word}'")
    _must(all(u["cosine"] >= SAME_UPDATE for u in located["ancestors"]), "an ancestor explains what was found")
    _must(located["agreement"] is not None, "something was located, and nothing extracted")
    if word == "derived":
        return
    agreements = [located["agreement"], *([located["owner_agreement"]] if located["owner_agreement"] else [])]
    near = all(a["difference"] is not None and a["difference"] <= AGREED for a in agreements)
    _must(coverage == 1 and not located["refitted"], "not all was found as it is, yet it is contained")
    _must(near and (located["residual"] or 0.0) <= close, "what was located differs, yet it is contained")


def _found(located: Document, layers: list[Document]) -> None:
    """How much of the owner's network was found, as far as layers and fixed tensors tell."""
    fixed, shares = located["fixed"], [layer["found"] / max(1, layer["channels"]) for layer in layers]
    near = [name for name, residual in fixed.items() if residual is not None and residual <= FIXED_ALIKE]
    most = sum(share >= 0.5 for share in shares) + len(near)
    _must(0 <= located["layers_found"] <= min(most, located["layers_in_all"]), "fewer layers were found")
    share = 1.0 if near else max(shares, default=0.0)
    _must(0 <= located["numbers_found"] <= round(located["numbers"] * share), "fewer numbers were found")
    _must(all(name in fixed and name not in near for name in located["replaced"]), "a tensor is not replaced")


def priority_holds(document: Document) -> None:
    """Who was first is said of a claim that holds, and of none that a rival's comes before."""
    answer, claims = document["priority"]["answer"], document["priority"]["claims"]
    _must(answer in ("first", "not first", "nothing shown"), "no such answer to who was first")
    if answer == "nothing shown":
        return
    own = claims[0] if claims else None
    _must(own is not None and own["role"] == "presented", "nothing was claimed, so nobody was first")
    assert own is not None, "checked"
    stamps = [stamp for stamp in own["timestamps"] if stamp["wrong"] is None]
    _must(not own["wrong"] and bool(stamps), "the claim does not hold, so it shows nothing")
    _must(own["time"] in [stamp["time"] for stamp in stamps], "the claim's time is that of no time-stamp")
    earlier = [c for c in claims[1:] if not c["wrong"] and c["time"] <= own["time"]]
    _must(answer != "first" or not earlier, "another claim to the suspect was there before")


def _ordered(residuals: Document) -> bool:
    """Whether the median is no more than the worst; what is not finite is null."""
    median, worst = residuals["median"], residuals["worst"]
    return worst is None or (median is not None and _number(median) <= _number(worst))


def _number(value: Any) -> float:
    _must(isinstance(value, int | float) and not isinstance(value, bool), f"{value!r:.40} is no number")
    return float(value)


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise VerificationError(f"the document contradicts itself: {otherwise}")
