"""From figures to answers: pure functions of an evidence document, so that anybody can work them out again.

Their sentences are made here as well. What they take from the run word by word, an error or a name, they put in
quotation marks: nothing follows from it, and nobody can work it out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, Final

from canon.verify.answers import Answers, Function, FunctionWord, MarkAnswer, Network, NetworkWord, Priority
from canon.verify.mark import ALPHA

LARGEST_TOLERANCE: Final = 1e-2
"""Tolerances up to here are standard."""

AGREE: Final = 1e-2
"""Outputs agree if none differs by more, relative to how much outputs move; at float32's precision."""

AGREE_ROUNDINGS: Final = 16
"""Outputs of a model in a coarser type may differ by this many roundings."""

MOVED: Final = 4
"""Outputs may differ by this many times as much as one rounding of all weights moves them."""

BLIND: Final = 0.5
"""Where outputs may differ by more than this, probes show nothing; nothing beyond it agrees."""

DISAGREE: Final = 0.1
"""Outputs disagree if one differs by more."""

MOST_OF_IT: Final = 0.75
"""Share of the owner's layers and numbers, its head aside, that must be found before a network is called derived."""

NO_CLAIM: Final = Priority("nothing shown", "no claim was given that shows what was there first")

ANCESTOR: Final = "a common ancestor of both would explain this as well; give it as an ancestor if there is one"

Document = Mapping[str, Any]


def quoted(text: object) -> str:
    """Words of the run, in quotation marks that they cannot end; the full stop is the sentence's that they stand in."""
    return f"“{str(text).removesuffix('.').translate({ord('“'): '‘', ord('”'): '’'})}”"


def unusual_options(options: Document) -> tuple[str, ...]:
    """What was asked for beyond the standard options."""
    found = []
    tolerance, alpha, layers = options.get("tolerance", 1e-3), options.get("alpha", ALPHA), options.get("layers")
    if not 0 <= tolerance <= LARGEST_TOLERANCE:
        found.append(f"a tolerance of {tolerance:g}, where {LARGEST_TOLERANCE:g} is the largest")
    if not 0 <= alpha <= ALPHA:
        found.append(f"an α of {alpha:g}, where {ALPHA:g} is the largest")
    if layers is not None:
        found.append(f"only {len(layers)} chosen layer{'s' * (len(layers) != 1)}")
    return tuple(found)


def answers_of(document: Document) -> Answers:
    """The four answers that a document's figures give."""
    function = _function(document["function"], document["precision"])
    return Answers(_network(document, function), function, _mark(document), _priority(document["priority"]))


def _function(figures: Document, precision: Document) -> Function:
    against = figures["against"]
    comparisons = figures["comparisons"]
    probes = {item["source"]: item["probes"] for item in comparisons}
    known = [item for item in comparisons if item["difference"] is not None]
    if not known:
        why = comparisons[0]["problem"] if comparisons else "nothing to compare with"
        return Function("not decided", f"outputs were not compared: {quoted(why)}", probes=probes)
    difference = max(item["difference"] for item in known)
    same = [item["same_decision"] for item in known if item["same_decision"] is not None]
    rounding = _rounding(figures, precision)
    random = [item.get("correlation") for item in known if item["source"] == "random"]
    correlation = next((x for x in random if x is not None), None)
    word: FunctionWord = "not decided"
    if difference <= agreeing(figures, precision) and len(known) == len(comparisons):
        word = "agree"
    elif difference > max(DISAGREE, rounding):
        word = "disagree"
    says = {"agree": "agree with", "disagree": "differ from", "not decided": "come near to"}[word]
    total = sum(item["probes"] for item in known)
    much = f"largest difference {difference:.2g} of their range"
    if rounding > AGREE:
        much += f", where rounding to {precision['compared']} explains {rounding:.2g}"
    if word == "disagree" and correlation is not None:
        much += f", correlation {correlation:.2f}"
    reason = f"outputs {says} those of {against} on {total} probes ({much})"
    return Function(word, reason, difference, min(same) if same else None, probes, correlation)


def agreeing(figures: Document, precision: Document) -> float:
    """Up to which difference outputs agree: as far as the coarser type can tell, but for what probes cannot show."""
    return min(max(AGREE, _rounding(figures, precision)), BLIND)


def _rounding(figures: Document, precision: Document) -> float:
    """What the rounding of weights explains of a difference of outputs."""
    moved: float = figures.get("rounding") or 0.0
    epsilon: float = precision["epsilon"]
    return max(AGREE_ROUNDINGS * epsilon, MOVED * moved)


def _network(document: Document, function: Function) -> Network:
    found = _found_network(document, function)
    if document["program"] is not None:
        found = _in_another_program(found, document["program"])
    if document["settings"] is not None:
        found = _with_settings(found, document["settings"])
    if found.answer == "unrelated" and function.answer == "agree":
        reason = f"{found.reason}; but it computes the same, which strangers do not"
        return replace(found, answer="not decided", reason=reason)
    return found


def _in_another_program(found: Network, program: Document) -> Network:
    """What may be said of a suspect that was brought into the owner's program: no more than what was brought over."""
    missing, surplus = program["missing"], program["surplus"]
    notes = (*found.notes, f"the suspect is another program; brought into the owner's in {len(program['steps'])} steps")
    if not program["exact"]:
        first = [f"first {quoted(names[0])}" for names in (missing, surplus) if names]
        said = (
            f"{len(missing)} layers of the owner's and {len(surplus)} parts of the suspect have no counterpart"
            f"{''.join(f', {f}' for f in first)}"
        )
        weaker: dict[str, NetworkWord] = {"equal": "derived", "contained": "derived", "unrelated": "not decided"}
        word = weaker.get(found.answer, found.answer)
        return replace(found, answer=word, reason=f"{found.reason}; but {said}", notes=notes)
    if surplus and found.answer == "equal":
        return replace(
            found,
            answer="contained",
            reason=f"{found.reason}; beside it the suspect has {len(surplus)} parts, first {quoted(surplus[0])}",
            notes=notes,
        )
    return replace(found, notes=notes)


def _with_settings(found: Network, settings: Document) -> Network:
    """What may be said of a network whose operations have other settings than the owner's, or unknown ones."""
    if found.answer not in ("equal", "contained", "derived"):
        return found
    if settings["problem"] is not None:
        reason = f"{found.reason}; settings of operations were not compared: {quoted(settings['problem'])}"
        return replace(found, reason=reason)
    if not settings["different"]:
        return found
    first, more = settings["different"][0], len(settings["different"]) - 1
    said = f"{quoted(first['what'])} is {quoted(first['suspect'])} where the owner's is {quoted(first['owner'])}"
    said += f", and {more} more setting{'s differ' if more > 1 else ' differs'}" if more else ""
    return replace(found, answer="derived", reason=f"{found.reason}; but {said}")


def _found_network(document: Document, function: Function) -> Network:
    if document["structure"] is not None:
        return Network("not decided", f"the networks cannot be compared: {quoted(document['structure'])}")
    equality, containment = document["equality"], document["containment"]
    missing = tuple(equality["coverage"]["uncompared"]) if equality is not None else ()
    if equality is not None and equality["passed"]:
        found = _equal(document, equality, function, missing)
        if found.answer == "equal" or containment is None:
            return found
    if containment is not None:
        limit = agreeing(document["function"], document["precision"])
        word, reason = _contained(containment, unusual_options(document["options"]), limit)
        return Network(
            word,
            reason,
            compared=containment["numbers_found"] / max(1, containment["numbers"]),
            coverage=containment["coverage"],
            residual=containment["residual"],
            missing=_not_found(containment),
            notes=tuple(containment["notes"]),
        )
    why = "nothing was compared" if equality is None else unequal(document)
    return Network("not decided", why, missing=missing)


def unequal(document: Document) -> str:
    """Why a suspect is not plainly equal, in one sentence."""
    equality, certificate = document["equality"], document["certificate"]
    limit, by = equality["tolerance"], "the reference" if equality["by"] == "reference" else "what was registered"
    if certificate is None and document["alignment"] is None:
        return f"the recovered model has other widths than {by}"
    layers = {} if certificate is None else {layer["name"]: layer["max_rel_err"] for layer in certificate["layers"]}
    tensors = equality["fixed"] if certificate is None else certificate["parameters"]
    for what, residuals in ((f"of {len(layers)} layers", layers), ("tensors beside weights", tensors)):
        beyond = [name for name, residual in residuals.items() if residual is None or residual > limit]
        if beyond:
            worst = residuals[beyond[0]]
            much = "which cannot be compared" if worst is None else f"by {worst:.2g}"
            return f"{len(beyond)} {what} differ from {by}, first {quoted(beyond[0])}, {much}"
    if equality["coverage"]["uncompared"]:
        item = equality["coverage"]["uncompared"][0]
        return f"{quoted(item['what'])} was not compared: {quoted(item['why'])}"
    if not equality["established"]:
        return "the weights do not decide in which order the channels stand"
    worst = equality["worst"]
    return f"the model is not {by}" + ("" if worst is None else f": channels differ by up to {worst:.2g}")


def _located(containment: Document) -> str:
    """What was found of the owner's network, in one sentence."""
    word, spaces = containment["answer"], containment["spaces"]
    found, owner = (sum(space[name] for space in spaces) for name in ("distinct", "owner"))
    many = f"{found:,} of {owner:,} of the owner's channels were found distinctly"
    if word == "unrelated":
        return f"{many}, {containment['deep']:.1%} of those beyond the first layers that can tell, as in a stranger"
    if word == "not decided":
        return f"{many}, which does not decide: {quoted(containment['reason'])}"
    if word == "contained":
        told = ["every channel of the owner's was found, and what is left of the suspect computes the same without it"]
    else:
        told = [many, *_short_of_contained(containment)]
    updates = [update["cosine"] or 0.0 for update in containment["ancestors"]]
    told.append(f"updates of the ancestor agree to {min(updates):.2f}" if updates else ANCESTOR)
    told += [quoted(note) for note in containment["notes"] if note in containment["reason"]]
    return "; ".join(told)


def _short_of_contained(containment: Document) -> list[str]:
    """What keeps a network that was found from being there as it is."""
    tested, spanned = (sum(span[name] for span in containment["spans"]) for name in ("channels", "spanned"))
    told = [f"{containment['missing']:,} were not found at all"] if containment["missing"] else []
    told += [f"{spanned:,} of {tested:,} are linear images of what the suspect computes"] if spanned else []
    told += [f"the columns of {len(containment['refitted'])} layers had to be refitted"] * bool(containment["refitted"])
    if (containment["residual"] or 0.0) > containment["tolerance"]:
        told.append(f"they were changed by up to {containment['residual']:.2g} of their size")
    for other, name in (("the suspect", "agreement"), ("the owner's", "owner_agreement")):
        gap = None if containment[name] is None else containment[name]["difference"]
        if gap is not None and gap > AGREE:
            told.append(f"the extracted model differs from {other} by {gap:.2g}")
    return told


def _contained(containment: Document, unusual: tuple[str, ...], limit: float) -> tuple[NetworkWord, str]:
    """What was located, in the weaker word where tensors without channels, or the function, say less."""
    word, reason, tolerance = containment["answer"], _located(containment), containment["tolerance"]
    fixed = {name: inf if residual is None else residual for name, residual in containment["fixed"].items()}
    beyond = [name for name, residual in fixed.items() if not residual <= tolerance]
    differences = [item["difference"] for item in containment["function"]]
    if word == "contained" and beyond:
        first = quoted(beyond[0])
        said = f"{len(beyond)} tensors without channels were not shown to be the owner's, first {first}"
        word, reason = "derived", f"{reason}; but {said}"
    if word == "contained" and not all(d is not None and d <= limit for d in differences):
        word, reason = "derived", f"{reason}; but what was extracted does not compute what the owner's network does"
    if word == "contained" and unusual:
        word, reason = "derived", f"{reason}; asked for: {'; '.join(unusual)}"
    if word in ("contained", "derived") and containment["replaced"]:
        first = containment["replaced"][0]
        return (
            "not decided",
            f"{reason}; but {len(containment['replaced'])} tensors are not the owner's, first {quoted(first)}",
        )
    layers = containment["layers_found"] / max(1, containment["layers_in_all"])
    numbers = containment["numbers_found"] / max(1, containment["numbers"])
    if word in ("contained", "derived") and min(layers, numbers) < MOST_OF_IT:
        share = f"{layers:.0%} of the owner's layers and {numbers:.0%} of its numbers were found"
        return "not decided", f"{reason}; but only {share}"
    return word, reason


def _not_found(containment: Document) -> tuple[dict[str, Any], ...]:
    """The spaces in which some of the owner's channels were not found."""
    short = [space for space in containment["spaces"] if space["found"] < space["owner"]]
    return tuple(
        {"what": space["name"], "numbers": space["owner"] - space["found"], "why": "channels that were not found"}
        for space in sorted(short, key=lambda space: space["found"] - space["owner"])
    )


def _equal(document: Document, equality: Document, function: Function, missing: tuple[Any, ...]) -> Network:
    """The model is the owner's as far as numbers tell; what else must hold."""
    share, worst = equality["share"], equality["worst"]
    precision = document["precision"]
    names = {"reference": "the reference", "layout key": "the registered model"}[equality["by"]]
    form = {"given": "", "folded": " with norms folded", "canonical": " without channels that do nothing"}
    said = f"{names}{form[equality['form']]} up to order and scale, within {worst:.2g}"
    notes: tuple[str, ...] = ()
    if precision["compared"] != "float32":
        notes = (f"compared at the precision of {precision['compared']}",)
    unusual = unusual_options(document["options"])
    if unusual:
        reason = f"what was compared ({share:.0%} of the numbers) is {said}; asked for: {'; '.join(unusual)}"
        return Network("not decided", reason, share, 1.0, worst, missing, notes)
    if function.answer != "agree":
        return Network(
            "not decided", f"all numbers are {said}, yet {function.reason}", share, 1.0, worst, missing, notes
        )
    covered = f"all {equality['numbers']:,} numbers compared"
    if equality["alone"]:
        covered = "every channel that does something compared by all that it computes"
    reason = "; ".join((f"the model is {said}: {covered}", *notes))
    return Network("equal", reason, share, 1.0, worst, missing, notes)


def _mark(document: Document) -> MarkAnswer:
    mark = document["watermark"]
    if mark is None:
        return MarkAnswer("no key", "no watermark key was given")
    if mark["refused"] is not None:
        return MarkAnswer("unread", f"the mark was not read: {quoted(mark['refused'])}")
    read = f"{mark['matched']} of {mark['total']} bits, p = {mark['p_value']:.2g}"
    controls = mark["controls"]
    if controls["void"]:
        return MarkAnswer("void", f"the key is void: {controls['reason']}", mark["p_value"])
    limit = min(mark["alpha"], ALPHA)
    if mark["p_value"] <= limit:
        return MarkAnswer("read", f"the message is read ({read})", mark["p_value"])
    most = max(controls["matched"])
    if not mark["carries_alone"] and mark["binomial"] <= limit and mark["matched"] > most:
        others = (
            f"{mark['matched']} of {mark['total']} bits, where {len(controls['matched'])} controls have {most} at most"
        )
        return MarkAnswer("read", f"the message is read ({others})", mark["p_value"])
    if 2.0 ** -mark["total"] > limit:
        return MarkAnswer("unread", f"{mark['total']} bits are too few to show a mark ({read})", mark["p_value"])
    if mark["read_from"] == "recovered":
        why = "the weights do not say in which order the channels stood, so it may be there unread"
        return MarkAnswer("unread", f"the key's message was not read ({read}); {why}", mark["p_value"])
    return MarkAnswer("unread", f"the key's message is not in it ({read})", mark["p_value"])


def _priority(figures: Document) -> Priority:
    reason = figures["reason"] if figures["reason"] == NO_CLAIM.reason else quoted(figures["reason"])
    return Priority(figures["answer"], reason, tuple(figures["claims"]))
