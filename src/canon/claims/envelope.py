"""DSSE: bytes of a named type, and a signature over both. Signing and checking are securesystemslib's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from canon.claims.canonical import canonical, fields, from_base64, parse
from canon.claims.keys import need_libraries, public_key, signer_pem
from canon.errors import ClaimError

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

SEALED_TYPE: Final = "application/vnd.canon.sealed+json"
"""Type of a sealed document: `{"document": …, "key": PEM}`."""


def sign(payload: bytes, payload_type: str, key: CryptoSigner) -> bytes:
    """An envelope as canonical JSON."""
    need_libraries()
    from securesystemslib.dsse import Envelope

    envelope = Envelope(payload, payload_type, {})
    envelope.sign(key)
    return canonical(envelope.to_dict())


def payload_of(envelope: bytes, payload_type: str, what: str) -> bytes:
    """What an envelope holds; nobody has looked at the signature yet."""
    kind, payload, _ = _read(envelope, what)
    if kind != payload_type:
        raise ClaimError(f"the {what} is of type '{kind:.60}', expected '{payload_type}'")
    return payload


def check_signature(envelope: bytes, key: SSlibKey, what: str) -> None:
    """Raise unless the one signature is the key's and is good."""
    need_libraries()
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import UnverifiedSignatureError
    from securesystemslib.signer import Signature

    kind, payload, (name, value) = _read(envelope, what)
    if name != key.keyid:
        raise ClaimError(f"the {what} is signed with another key than the one that it names")
    try:
        key.verify_signature(Signature(name, value.hex()), Envelope(payload, kind, {}).pae())
    except UnverifiedSignatureError as error:
        raise ClaimError(f"the signature of the {what} does not hold: it was changed after it was signed") from error


def signature_of(envelope: bytes, what: str) -> bytes:
    """The signature's bytes; nobody has looked whether it holds."""
    return _read(envelope, what)[2][1]


def seal(document: Any, key: CryptoSigner) -> bytes:
    """A JSON document, signed: a DSSE envelope that also names the key.

    Args:
        document: Plain JSON, such as evidence.
        key: What `load_key` or `new_key` gives.
    """
    return sign(canonical({"document": document, "key": signer_pem(key)}), SEALED_TYPE, key) + b"\n"


def open_sealed(data: bytes, key: str | None = None) -> tuple[Any, str]:
    """The document in a sealed one, and the PEM text of the key that signed it.

    Args:
        data: What `seal` gave.
        key: PEM text of the public key that must have signed it; None: any, and the caller looks at whose it is.

    Raises:
        ClaimError: It is damaged, its signature does not hold, or another key signed it.
    """
    envelope = data.removesuffix(b"\n")
    payload = payload_of(envelope, SEALED_TYPE, "sealed document")
    held = parse(payload, "sealed document")
    document, pem = fields(held, "sealed document", "document", "key")
    if canonical(held) != payload or not isinstance(pem, str):
        raise ClaimError("the sealed document is damaged: it is not as Canon writes it")
    if key is not None and key.strip() != pem.strip():
        raise ClaimError("the sealed document was signed by another key than the one given")
    check_signature(envelope, public_key(pem), "sealed document")
    return document, pem


def _read(envelope: bytes, what: str) -> tuple[str, bytes, tuple[str, bytes]]:
    value = parse(envelope, what)
    payload, kind, signatures = fields(value, what, "payload", "payloadType", "signatures")
    if not isinstance(kind, str) or not isinstance(signatures, list) or len(signatures) != 1:
        raise ClaimError(f"the {what} is damaged: expected one signature")
    name, signature = fields(signatures[0], what, "keyid", "sig")
    if not isinstance(name, str) or canonical(value) != envelope:
        raise ClaimError(f"the {what} is damaged: it is not as Canon writes it")
    return kind, from_base64(payload, what), (name, from_base64(signature, what))
