"""Evidence: one JSON document that says what was compared, how, and what came of it.

The document carries a digest of itself. It is the source of its own conclusions: answers and verdict are pure
functions of the figures in it, and `canon.api.checking` works them out again. That shows a slip or an edit; it is no
signature. Who must be sure of its origin signs the file, or repeats the run: all that this needs is in the document.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

import numpy
import scipy
import torch

from canon._version import __version__
from canon.errors import VerificationError
from canon.verify.alignment import Alignment
from canon.verify.answers import Answers
from canon.verify.certificate import BINS, Certificate
from canon.verify.digest import document_digest
from canon.verify.forms import Form
from canon.verify.schema import check_schema, outline_schema
from canon.verify.verdict import Verdict

FORMAT: Final = "canon-evidence"
VERSION: Final = 3

FROM_OWNER: Final = (
    "where norms stood",
    "per channel, the scale and sign that rows in front of those norms are brought to for reading a watermark",
)
"""What is taken from the owner's side because norms were folded away, beside order and scale of channels."""

Document = dict[str, Any]


def write_evidence(
    figures: Mapping[str, Any], answers: Answers, verdict: Verdict, notes: Mapping[str, Any]
) -> Document:
    """The document of one verification.

    Args:
        figures: All that was measured, as plain data.
        answers: What the figures say.
        verdict: What follows.
        notes: What else was asked to be kept: `command`, `case`, `examiner`.
    """
    document = plain(
        {
            "format": FORMAT,
            "version": VERSION,
            "record": {"created": datetime.now(UTC).isoformat(timespec="seconds"), **notes},
            "verdict": {"kind": verdict.kind, "reason": verdict.reason},
            "answers": asdict(answers),
            **figures,
            "environment": environment(),
        }
    )
    assert isinstance(document, dict), "made above"
    return {**document, "digest": document_digest(document)}


def check_form(document: object, where: str | None = None) -> None:
    """Refuse what is no evidence of this version with all its parts; what they hold is not looked at."""
    check_version(document, where)
    try:
        check_schema(document, outline_schema())
    except VerificationError as error:
        raise VerificationError(error.message, where=where) from error


def check_version(document: object, where: str | None = None) -> None:
    """Refuse what is no evidence, or of another version."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise VerificationError("the document is not evidence written by Canon", where=where)
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise VerificationError(
            f"the document has version {version!r:.20}; this Canon reads version {VERSION}",
            where=where,
            hint="Repeat the verification with this version of Canon",
        )


def check_digest(document: Mapping[str, Any]) -> None:
    """Refuse what was changed after it was written."""
    content = {name: value for name, value in document.items() if name != "digest"}
    try:
        digest = document_digest(content)
    except (ValueError, RecursionError) as error:
        raise VerificationError("the document holds numbers that are not finite") from error
    if document.get("digest") != digest:
        raise VerificationError("the document was changed after it was written: its digest does not agree")


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


def form_figures(form: Form) -> Document:
    """Whether norms were folded, and what of the reference went into the suspect because of that."""
    return {
        "kind": "folded" if form.changed else "given",
        "restored": [{"norm": pair.norm, "layer": pair.layer} for pair in form.restored],
        "folded": [{"norm": pair.norm, "layer": pair.layer} for pair in form.folded],
        "from_owner": list(FROM_OWNER) if form.restored else [],
    }


def alignment_figures(alignment: Alignment) -> Document:
    """How a model was aligned."""
    return {
        "established": alignment.established,
        "established_everywhere": alignment.established_everywhere,
        "distinct": alignment.distinct,
        "worst": alignment.worst,
        "spaces": [asdict(space) for space in alignment.spaces],
    }


def certificate_figures(certificate: Certificate) -> Document:
    """What Tier 1 found."""
    return {
        "passed": certificate.passed,
        "tolerance": certificate.tolerance,
        "max_rel_err": certificate.max_rel_err,
        "match_frac": certificate.match_frac,
        "matching": certificate.matching,
        "canonical": certificate.canonical,
        "folded": certificate.folded,
        "narrowed": certificate.narrowed,
        "layers": [
            {name: value for name, value in asdict(layer).items() if name != "reason"} for layer in certificate.layers
        ],
        "parameters": dict(certificate.parameters),
        "sweep": [asdict(row) for row in certificate.sweep()],
        "quantiles": {f"{share:g}": value for share, value in certificate.quantiles().items()},
        "histogram": {"borders": BINS, "counts": certificate.histogram()},
    }


def plain(value: Any) -> Any:
    """What JSON can hold; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value
