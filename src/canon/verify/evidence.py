"""Evidence: one JSON document that says what was compared, how, and what came of it.

The document carries a digest of itself, and every figure that follows from others is worked out again when it is
checked. That shows a slip or an edit; it is no signature. Who must be sure of its origin signs the file, or repeats the
run: everything that is needed for that is in the document.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isclose, isfinite
from typing import Any, Final

import numpy
import scipy
import torch

from canon._version import __version__
from canon.errors import VerificationError
from canon.verify.alignment import Alignment
from canon.verify.certificate import BINS, Certificate
from canon.verify.digest import document_digest
from canon.verify.mark import Tier2, p_value
from canon.verify.verdict import Findings, Inconclusive, Proved, Refuted, Verdict

FORMAT: Final = "canon-evidence"
VERSION: Final = 1

FROM_OWNER: Final = (
    "where norms stood",
    "per channel, the scale and sign that rows in front of those norms are brought to for reading a watermark",
)
"""What is taken from the owner's side because norms were folded away, beside order and scale of channels."""

Document = dict[str, Any]


def write_evidence(
    findings: Findings,
    verdict: Verdict,
    *,
    inputs: Mapping[str, Mapping[str, str]],
    options: Mapping[str, Any],
    agreement: Mapping[str, Any] | None = None,
    recovery: Mapping[str, Any] | None = None,
    network: Sequence[Mapping[str, Any]] = (),
) -> Document:
    """The document of one verification.

    Args:
        findings: What was found.
        verdict: What follows.
        inputs: By role (suspect, reference, layout_key, watermark_key): names and SHA-256 digests.
        options: Everything that was asked for.
        agreement: How far outputs agree on probes.
        recovery: What recovery did to the suspect.
        network: The layers in execution order: what each reads and makes, and its widths.
    """
    document: Document = {
        "format": FORMAT,
        "version": VERSION,
        "verdict": _verdict(verdict),
        "inputs": {role: dict(names) for role, names in inputs.items()},
        "options": dict(options),
        "form": _form(findings),
        "alignment": None if findings.alignment is None else _alignment(findings.alignment),
        "certificate": None if findings.certificate is None else _certificate(findings.certificate),
        "watermark": _watermark(findings),
        "agreement": None if agreement is None else dict(agreement),
        "recovery": None if recovery is None else dict(recovery),
        "network": [dict(layer) for layer in network],
        "environment": environment(),
    }
    document = _plain(document)
    return {**document, "digest": document_digest(document)}


def check_evidence(document: Any) -> None:
    """Check a document against itself.

    Raises:
        VerificationError: It is of another kind or a newer version, was changed after it was written, or contradicts
            itself.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise VerificationError("the document is not evidence written by Canon")
    version = document.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise VerificationError(f"the document has version {version!r}; this Canon reads up to {VERSION}")
    content = {name: value for name, value in document.items() if name != "digest"}
    try:
        digest = document_digest(content)
    except ValueError as error:
        raise VerificationError("the document holds numbers that are not finite") from error
    if document.get("digest") != digest:
        raise VerificationError("the document was changed after it was written: its digest does not agree")
    try:
        _check_figures(document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise VerificationError(f"the document is incomplete: {error!r:.80}") from error


def read_evidence(text: str) -> Document:
    """Parse and check a document."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VerificationError("the document is not JSON") from error
    check_evidence(document)
    assert isinstance(document, dict), "check_evidence refuses anything else"
    return document


def environment() -> dict[str, str]:
    """Versions of everything that computed."""
    return {
        "canon": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "platform": platform.platform(),
    }


def _verdict(verdict: Verdict) -> Document:
    kind = {Proved: "proved", Refuted: "refuted", Inconclusive: "inconclusive"}[type(verdict)]
    return {"kind": kind, "tier": verdict.tier if isinstance(verdict, Proved) else None, "reason": verdict.reason}


def _form(findings: Findings) -> Document:
    """Whether norms were folded, what of the reference went into the suspect because of that, and what it rules out."""
    form = findings.form
    return {
        "kind": "folded" if form.changed else "given",
        "restored": [{"norm": pair.norm, "layer": pair.layer} for pair in form.restored],
        "folded": [{"norm": pair.norm, "layer": pair.layer} for pair in form.folded],
        "from_owner": list(FROM_OWNER) if form.restored else [],
        "watermark_not_read": findings.refused,
    }


def _alignment(alignment: Alignment) -> Document:
    return {
        "established": alignment.established,
        "distinct": alignment.distinct,
        "worst": alignment.worst,
        "spaces": [asdict(space) for space in alignment.spaces],
    }


def _certificate(certificate: Certificate) -> Document:
    return {
        "passed": certificate.passed,
        "tolerance": certificate.tolerance,
        "max_rel_err": certificate.max_rel_err,
        "match_frac": certificate.match_frac,
        "matching": certificate.matching,
        "canonical": certificate.canonical,
        "folded": certificate.folded,
        "layers": [asdict(layer) for layer in certificate.layers],
        "parameters": dict(certificate.parameters),
        "sweep": [asdict(row) for row in certificate.sweep()],
        "quantiles": {f"{share:g}": value for share, value in certificate.quantiles().items()},
        "histogram": {"borders": BINS, "counts": certificate.histogram()},
    }


def _watermark(findings: Findings) -> Document | None:
    mark, tier2 = findings.mark, findings.tier2
    if mark is None or tier2 is None:
        return None
    return {
        **asdict(mark),
        "p_value": mark.p_value,
        "alpha": findings.alpha,
        "tier2": {**asdict(tier2), "drop": tier2.drop, "passed": tier2.passed},
    }


def _check_figures(document: Document) -> None:
    certificate, mark, verdict = document["certificate"], document["watermark"], document["verdict"]
    if certificate is not None:
        layers = certificate["layers"]
        passed = bool(layers) and all(layer["passed"] for layer in layers)
        for layer in layers:
            error = layer["max_rel_err"]
            within = error is not None and error <= certificate["tolerance"]
            _agree(f"layer {layer['name']}", layer["passed"], within)
        _agree("certificate", certificate["passed"], passed)
        if "histogram" in certificate:
            counted, channels = sum(certificate["histogram"]["counts"]), sum(layer["width"] for layer in layers)
            compared = any(layer["max_rel_err"] is not None for layer in layers)
            _agree("histogram", True, counted == (channels if compared else 0))
    if mark is not None:
        expected = p_value(mark["matched"], mark["total"], mark["alternatives"])
        if not isclose(mark["p_value"], expected, rel_tol=1e-9):
            raise VerificationError(f"the p-value {mark['p_value']} does not follow from the bits ({expected})")
        given = mark["tier2"]
        tier2 = Tier2(given["clean"], given["attacked"], given["recovered"], given["fraction"], given["slack"])
        _agree("Tier 2", given["passed"], tier2.passed)
    form = document["form"]
    _agree("form", form["kind"] == "folded", bool(form["restored"] or form["folded"]))
    if form["watermark_not_read"] is not None:
        _agree("watermark", mark is not None, False)
    if verdict["kind"] == "proved":
        shown = mark is None or mark["p_value"] <= mark["alpha"]
        if verdict["tier"] == 1:
            equal = document["alignment"]["established"] if certificate is None else certificate["passed"]
            _agree("verdict", True, bool(shown and equal))
        else:
            _agree("verdict", True, bool(mark is not None and shown and mark["tier2"]["passed"]))


def _agree(what: str, said: object, found: bool) -> None:
    if said is not found:
        raise VerificationError(f"the document contradicts itself: {what} says {said}, its figures say {found}")


def _plain(value: Any) -> Any:
    """What JSON can hold; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value
