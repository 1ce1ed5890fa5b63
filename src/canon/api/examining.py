"""Read evidence that may come from anybody, and say of everything that follows from other figures whether it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from canon.api.checking import CHECKS, FIELDS, _verdict
from canon.errors import ClaimError, VerificationError
from canon.verify.evidence import FORMAT, VERSION, check_digest

Document = Mapping[str, Any]
Check = Callable[[Document], None]
"""Raises a `VerificationError` where something does not hold."""

LARGEST: Final = 256 * 2**20
"""Bytes of a document at most."""

TITLES: Final = {
    "_precision": "precision and tolerance follow from the float types and options",
    "_equality": "equality follows from coverage, residuals and alignment",
    "_certificate": "the certificate follows from its layers",
    "_alignment": "the alignment follows from its spaces",
    "_watermark": "p-values, controls and Tier 2 follow from the bits",
    "_form": "the form follows from the norms that were folded",
    "structure_holds": "what was compared is what could be compared",
    "function_holds": "differences of outputs are numbers, or there is a reason",
    "containment_holds": "what was located follows from its layers and spaces",
    "priority_holds": "who was first follows from claims that hold",
}
"""What a check of `canon.api.checking` looks at; others go by their own names."""


@dataclass(frozen=True)
class Finding:
    """One thing that was worked out again."""

    what: str
    holds: bool
    problem: str | None = None


def load_document(path: str | Path) -> dict[str, Any]:
    """A document from a file, as it is: complete in form, checked for nothing else.

    Raises:
        VerificationError: It is no evidence, of another version, incomplete, or says something twice.
    """
    where = str(path)
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except (IsADirectoryError, ValueError) as error:
        raise VerificationError("the document cannot be read", where=where) from error
    if len(content) > LARGEST:
        raise VerificationError(f"the document is larger than {LARGEST:,} bytes", where=where)
    try:
        document = json.loads(content.decode("utf-8"), object_pairs_hook=_once, parse_constant=_refuse)
    except VerificationError as error:
        raise VerificationError(error.message, where=where) from error
    except (ValueError, RecursionError) as error:
        hint = "Give the evidence that `canon verify` wrote"
        raise VerificationError("the document is not JSON", where=where, hint=hint) from error
    if isinstance(document, dict) and "payloadType" in document:
        document = _unsealed(content, where)
    check_form(document, where)
    assert isinstance(document, dict), "checked"
    return document


def _unsealed(content: bytes, where: str) -> Any:
    """What a signed document holds, if its signature is that of the key it names."""
    from canon.claims import open_sealed

    try:
        return open_sealed(content)[0]
    except ClaimError as error:
        raise VerificationError(f"the signed document does not hold: {error.message}", where=where) from error


def signer_of(path: str | Path) -> str | None:
    """PEM text of the key that signed a document; None where nobody did."""
    from canon.claims import open_sealed

    content = Path(path).read_bytes()
    if not content.startswith(b'{"payload":'):
        return None
    try:
        return open_sealed(content)[1]
    except ClaimError as error:
        raise VerificationError(f"the signed document does not hold: {error.message}", where=str(path)) from error


def check_form(document: object, where: str | None = None) -> None:
    """Raise unless a document is evidence of this version with all its parts."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise VerificationError("the document is not evidence written by Canon", where=where)
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise VerificationError(
            f"the document has version {version!r:.20}; this Canon reads version {VERSION}",
            where=where,
            hint="Repeat the verification with this version of Canon",
        )
    for name, kind in FIELDS.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if name not in document or type(document[name]) not in kinds:
            raise VerificationError(f"the document is incomplete: '{name}' is missing or of another kind", where=where)
    surplus = sorted(document.keys() - FIELDS.keys())
    if surplus:
        raise VerificationError(f"the document holds something that evidence does not: '{surplus[0]:.40}'", where=where)


def examine_evidence(document: Document, further: Sequence[tuple[str, Check]] = ()) -> tuple[Finding, ...]:
    """Work out everything again that follows from other figures, and say of each whether it holds.

    Args:
        document: Complete evidence, as `load_document` gives it.
        further: More checks with what they look at, such as of a signature.
    """
    checks: list[tuple[str, Check]] = [
        ("the digest is that of the content", check_digest),
        ("answers and verdict follow from the figures", _verdict),
        *((TITLES.get(check.__name__, check.__name__.strip("_").replace("_", " ")), check) for check in CHECKS),
        *further,
    ]
    return tuple(_examined(what, check, document) for what, check in checks)


def _examined(what: str, check: Check, document: Document) -> Finding:
    try:
        check(document)
    except VerificationError as error:
        return Finding(what, False, error.message)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError, StopIteration) as error:
        return Finding(what, False, f"figures are missing or of another kind: {error!r:.80}")
    return Finding(what, True)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise VerificationError("the document says something twice")
    return found


def _refuse(constant: str) -> Any:
    raise VerificationError(f"the document holds '{constant}', which is no number of JSON")
