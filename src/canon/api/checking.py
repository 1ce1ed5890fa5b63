"""Check evidence against itself: everything that follows from other figures is worked out again, the verdict first.

A document that passes is consistent. That it is true only a repeated run shows, and whose it is only a signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import permutations
from math import isclose
from typing import Any, Final

import torch

from canon.api.recounting import (
    containment_holds,
    function_holds,
    priority_holds,
    program_holds,
    recovery_holds,
    settings_holds,
    structure_holds,
)
from canon.errors import CanonError, VerificationError
from canon.verify.alignment import ESTABLISHED
from canon.verify.answering import answers_of, unusual_options
from canon.verify.certificate import BINS, SWEEP
from canon.verify.evidence import FROM_OWNER, check_digest, check_version, plain
from canon.verify.mark import Tier2, p_value
from canon.verify.precision import ROUNDINGS
from canon.verify.schema import check_schema, evidence_schema
from canon.verify.verdict import decide
from canon.watermarks import Controls, get, names
from canon.watermarks.controls import COUNT

Document = Mapping[str, Any]
Check = Callable[[Document], None]
"""Raises a `VerificationError` where something does not hold."""

MOST_KINDS: Final = 3
"""Kinds of controls that there are."""


def check_evidence(document: Any) -> None:
    """Check a document against itself.

    Raises:
        VerificationError: It is of another kind or version, was changed after it was written, lacks something, or
            contradicts itself.
    """
    check_version(document)
    for check in CHECKS.values():
        repeat(check, document)


def repeat(check: Check, document: Document) -> None:
    """Work out again what one check looks at.

    Raises:
        VerificationError: It does not hold, or what it follows from is not there.
    """
    try:
        check(document)
    except VerificationError:
        raise
    except (
        CanonError, KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError, StopIteration,
    ) as error:  # fmt: skip
        raise VerificationError(f"figures are missing or of another kind: {error!r:.80}") from error


def _schema(document: Document) -> None:
    check_schema(document, evidence_schema())


def _verdict(document: Document) -> None:
    answers = answers_of(document)
    for question, answer in plain(asdict(answers)).items():
        _same(f"the answer '{question}'", document["answers"][question], answer)
    verdict = decide(answers, unusual_options(document["options"]))
    _same("the verdict", document["verdict"], {"kind": verdict.kind, "reason": verdict.reason})


def _precision(document: Document) -> None:
    given = document["precision"]
    epsilons = {name: torch.finfo(getattr(torch, given[name])).eps for name in ("suspect", "owner")}
    coarser = max(epsilons, key=lambda name: epsilons[name])
    _same("the precision", given["epsilon"], epsilons[coarser])
    _same("the precision", torch.finfo(getattr(torch, given["compared"])).eps, epsilons[coarser])
    if document["equality"] is not None:
        allowed = max(document["options"]["tolerance"], ROUNDINGS * given["epsilon"])
        _near("the tolerance", document["equality"]["tolerance"], allowed)


def _equality(document: Document) -> None:
    found, certificate, alignment = document["equality"], document["certificate"], document["alignment"]
    if found is None:
        _same("the certificate", certificate, None)
        return
    missing = found["coverage"]["uncompared"]
    numbers = sum(item["numbers"] for item in missing)
    share = max(0.0, 1 - numbers / found["numbers"]) if found["numbers"] else 0.0
    _near("the share that was compared", found["share"], share)
    passed = (
        found["worst"] is not None
        and found["worst"] <= found["tolerance"]
        and found["established"]
        and found["numbers"] > 0
        and (found["narrowed"] or not missing)
    )
    if found["alone"]:
        passed = passed and all(
            residual is not None and residual <= found["tolerance"] for residual in found["fixed"].values()
        )
    _same("equality", found["passed"], bool(passed))
    if found["alone"]:
        _same("the form", found["form"], "canonical")
        return
    if certificate is None:
        _same("equality", found["by"], "layout key")
        _same("narrowing", found["narrowed"], False)
        _same("the form", found["form"], document["form"]["kind"] if alignment is not None else "given")
        if alignment is None:
            _same("equality", found["passed"], False)
        worst = [0.0 if alignment is None else alignment["worst"], *found["fixed"].values()]
        if alignment is not None and None not in worst:
            _near("the worst residual", found["worst"], max(worst))
            _same("the alignment", found["established"], alignment["established_everywhere"])
        return
    _same("equality", found["by"], "reference")
    _same("equality", found["passed"], certificate["passed"])
    if found["passed"] and not certificate["canonical"]:
        _same("the alignment", found["established"], alignment is not None and alignment["established_everywhere"])
    _same("the worst residual", found["worst"], certificate["max_rel_err"])
    _same("narrowing", found["narrowed"], certificate["narrowed"])
    form = "canonical" if certificate["canonical"] else "folded" if certificate["folded"] else "given"
    _same("the form", found["form"], form)


def _certificate(document: Document) -> None:
    certificate = document["certificate"]
    if certificate is None:
        return
    layers, tolerance = certificate["layers"], certificate["tolerance"]
    _same("the tolerance", tolerance, document["equality"]["tolerance"])
    errors = [layer["max_rel_err"] for layer in layers] + [*certificate["parameters"].values()]
    for layer in layers:
        error = layer["max_rel_err"]
        _same(f"layer {layer['name']:.60}", layer["passed"], error is not None and error <= tolerance)
        _same(f"layer {layer['name']:.60}", layer["passed"], layer["match_frac"] == 1)
    within = bool(errors) and all(error is not None and error <= tolerance for error in errors)
    if certificate["passed"] and not within:
        raise VerificationError("the document contradicts itself: the certificate passed, its layers did not")
    _same("the worst residual", certificate["max_rel_err"], None if None in errors else max(errors, default=None))
    counted, channels = sum(certificate["histogram"]["counts"]), sum(layer["width"] for layer in layers)
    compared = any(layer["max_rel_err"] is not None for layer in layers)
    _same("the histogram", counted, channels if compared else 0)
    _same("the histogram", certificate["histogram"]["borders"], list(BINS))
    _same("the histogram", len(certificate["histogram"]["counts"]), len(BINS) + 1)
    _same("the matching", certificate["matching"], document["options"]["matching"])
    within_layers = sum(layer["match_frac"] * layer["width"] for layer in layers)
    _near("the share of channels", certificate["match_frac"], within_layers / channels if channels else 0.0)
    _spread(certificate, compared)


def _spread(certificate: Document, compared: bool) -> None:
    """Other tolerances and the distribution say what the residuals do, of which a document holds the worst."""
    worst, shares = certificate["max_rel_err"], [row["match_frac"] for row in certificate["sweep"]]
    _same("other tolerances", [row["tolerance"] for row in certificate["sweep"]], list(SWEEP))
    _same("other tolerances", shares, sorted(shares))
    for row in certificate["sweep"]:
        _same("other tolerances", row["max_rel_err"], worst)
        passes = compared and worst is not None and worst <= row["tolerance"]
        _same("other tolerances", row["passed"], passes)
        _same("other tolerances", row["passed"] and row["match_frac"] != 1, False)
    known, values = certificate["quantiles"], [*certificate["quantiles"].values()]
    _same("the distribution", bool(known), compared)
    if compared and None not in values:
        _same("the distribution", values, sorted(values))
        errors = [layer["max_rel_err"] for layer in certificate["layers"]]
        if None not in errors:
            _near("the distribution", known["1"], max(errors))


def _alignment(document: Document) -> None:
    alignment = document["alignment"]
    if alignment is None:
        return
    free = [space for space in alignment["spaces"] if not space["pinned"]]
    total = sum(space["width"] for space in free)
    distinct = sum(space["distinct"] * space["width"] for space in free) / total if total else 1.0
    _near("the alignment", alignment["distinct"], distinct)
    for space in alignment["spaces"]:
        ordered = space["worst"] is None or (space["median"] is not None and space["median"] <= space["worst"])
        _same(f"space {space['name']:.60}", ordered and space["ambiguous"] <= space["width"], True)
    worst = [space["worst"] for space in alignment["spaces"]]
    _same("the alignment", alignment["worst"], None if None in worst else max(worst, default=0.0))
    _same("the alignment", alignment["established"], distinct >= ESTABLISHED)
    everywhere = all(space["distinct"] + space["ambiguous"] / space["width"] >= ESTABLISHED for space in free)
    _same("the alignment", alignment["established_everywhere"], everywhere)


def _watermark(document: Document) -> None:
    mark = document["watermark"]
    if mark is None or mark["refused"] is not None:
        _same("a mark that was not read", mark is None or mark.keys() == {"scheme", "refused"}, True)
        return
    _near("the p-value", mark["binomial"], p_value(mark["matched"], mark["total"], mark["alternatives"]))
    _same("the places to choose from", mark["alternatives"] >= 1, True)
    controls = _controls(mark["controls"])
    _same("the controls", mark["controls"], plain(controls.to_dict()))
    _same("the controls", controls.scheme, mark["scheme"])
    _same("the number of controls", controls.count, COUNT)
    if mark["scheme"] in names():
        scheme = get(mark["scheme"])
        _same("the scheme", mark["carries_alone"], scheme.carries_alone)
        _same("the kinds of controls", {*controls.kinds}, {*scheme.unmarked})
    _same("the scheme", mark["carries_alone"], controls.carries_alone)
    _same("the controls", mark["total"], controls.total)
    _near("the p-value", mark["p_value"], controls.p_value(mark["matched"], mark["alternatives"]))
    _same("α", mark["alpha"], document["options"]["alpha"])
    given = mark["tier2"]
    tier2 = Tier2(given["clean"], given["attacked"], given["recovered"], given["fraction"], given["slack"])
    _same("Tier 2", given["passed"], tier2.passed)
    _near("what was lost", given["drop"], tier2.drop)
    for name in ("fraction", "slack"):
        _same(f"the option '{name}'", given[name], document["options"][name])
    _as_given(mark)
    _read_from(mark, document)


def _read_from(mark: Document, document: Document) -> None:
    """The mark is read where the weights force the order, or from the suspect as it was recovered."""
    place, alignment = mark["read_from"], document["alignment"]
    _same("the place of the mark", place in ("aligned", "extracted", "recovered"), True)
    if place == "extracted" and document["containment"] is None:
        raise VerificationError("the document contradicts itself: the mark was read from what was never extracted")
    here = [] if alignment is None else [s for s in alignment["spaces"] if s["name"] in mark["spaces"]]
    free = all(space["pinned"] or space["distinct"] >= ESTABLISHED for space in here)
    if place == "aligned" and (alignment is None or not alignment["established"] or not free):
        raise VerificationError(
            "the document contradicts itself: the mark was read from an alignment that does not hold"
        )


def _as_given(mark: Document) -> None:
    """The suspect as it was given is read with the same key, and similarities are those of the readings."""
    given, tier2 = mark["as_given"], mark["tier2"]
    _same("the bits of the suspect as given", given["total"], mark["total"])
    expected = p_value(given["matched"], given["total"], given["alternatives"])
    _near("the p-value of the suspect as given", given["p_value"], expected)
    _same("the similarity of the suspect as given", tier2["attacked"], given["similarity"])
    _same("the similarity", tier2["recovered"], mark["similarity"])
    shares = all(0 <= tier2[name] <= 1 for name in ("clean", "attacked", "recovered"))
    _same("similarities that are shares", shares, True)


def _controls(figures: Document) -> Controls:
    """Controls come in turn, one of each kind; which kind came first a document does not say."""
    matched = tuple(figures["matched"])
    if not 1 <= len(figures["kinds"]) <= MOST_KINDS:
        raise VerificationError("the document contradicts itself: there are no such kinds of controls")
    found = [
        Controls(
            figures["scheme"],
            figures["seed"],
            tuple(kinds[place % len(kinds)] for place in range(len(matched))),
            matched,
            figures["total"],
            figures["carries_alone"],
        )
        for kinds in permutations(figures["kinds"])
    ]
    return next((controls for controls in found if plain(controls.to_dict()) == figures), found[0])


def _form(document: Document) -> None:
    form = document["form"]
    _same("the form", form["kind"], "folded" if form["restored"] or form["folded"] else "given")
    _same("the form", form["from_owner"], list(FROM_OWNER) if form["restored"] else [])


CHECKS: Final[Mapping[str, Check]] = {
    "the digest is that of the content": check_digest,
    "every figure is of the kind and in the range of the schema": _schema,
    "answers and verdict follow from the figures": _verdict,
    "what was compared is what could be compared": structure_holds,
    "the program is the owner's as far as its figures say": program_holds,
    "precision and tolerance follow from the float types and options": _precision,
    "equality follows from coverage, residuals and alignment": _equality,
    "the certificate follows from its layers": _certificate,
    "the alignment follows from its spaces": _alignment,
    "settings were compared where the owner's network is there": settings_holds,
    "differences of outputs are numbers, or there is a reason": function_holds,
    "what was located follows from its layers and spaces": containment_holds,
    "what was recovered follows from its spaces": recovery_holds,
    "p-values, controls and Tier 2 follow from the bits": _watermark,
    "who was first follows from claims that hold": priority_holds,
    "the form follows from the norms that were folded": _form,
}
"""What is worked out again, and how."""


def _same(what: str, said: object, found: object) -> None:
    if said != found or (isinstance(said, bool) is not isinstance(found, bool)):
        raise VerificationError(
            f"the document contradicts itself: {what} says {said!r:.60}, its figures say {found!r:.60}"
        )


def _near(what: str, said: Any, found: float) -> None:
    if (
        isinstance(said, bool)
        or not isinstance(said, int | float)
        or not isclose(said, found, rel_tol=1e-9, abs_tol=1e-300)
    ):
        raise VerificationError(f"the document contradicts itself: {what} says {said!r:.60}, its figures say {found}")
