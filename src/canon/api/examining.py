"""Read evidence that may come from anybody, and say of everything that follows from other figures whether it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from canon._untrusted import parse_json
from canon.api.checking import CHECKS, Check, check_evidence, repeat
from canon.errors import ClaimError, FileFormatError, VerificationError
from canon.verify.evidence import check_form

Document = Mapping[str, Any]

LARGEST: Final = 256 * 2**20
"""Bytes of a document at most."""


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
    return _read(content, where)


def read_evidence(text: str) -> dict[str, Any]:
    """Parse and check a document.

    Raises:
        VerificationError: It is no evidence, says something twice, or does not hold; see `check_evidence`.
    """
    document = _read(text.encode("utf-8", "replace"), None)
    check_evidence(document)
    return document


def _read(content: bytes, where: str | None) -> dict[str, Any]:
    try:
        document = parse_json(content, where or "the document")
    except FileFormatError as error:
        hint = "Give the evidence that `canon verify` wrote"
        raise VerificationError(f"the document is not evidence: {error.message}", where=where, hint=hint) from error
    if isinstance(document, dict) and "payloadType" in document:
        document = _unsealed(content, where)
    check_form(document, where)
    assert isinstance(document, dict), "checked"
    return document


def _unsealed(content: bytes, where: str | None) -> Any:
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


def examine_evidence(document: Document, further: Sequence[tuple[str, Check]] = ()) -> tuple[Finding, ...]:
    """Work out everything again that follows from other figures, and say of each whether it holds.

    Args:
        document: Complete evidence, as `load_document` gives it.
        further: More checks with what they look at, such as of a signature.
    """
    return tuple(_examined(what, check, document) for what, check in (*CHECKS.items(), *further))


def _examined(what: str, check: Check, document: Document) -> Finding:
    try:
        repeat(check, document)
    except VerificationError as error:
        return Finding(what, False, error.message)
    return Finding(what, True)
