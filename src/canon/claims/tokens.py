"""RFC 3161 responses: ask an authority for one, and take one apart.

Parsing is the work of rfc3161-client and asn1crypto. What is checked here is what no signature covers and what RFC 3161
asks for beside it, so that no bit of a response can change unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256, sha384, sha512
from typing import TYPE_CHECKING, Any, Final

from canon.claims.canonical import hostile
from canon.claims.keys import need_libraries
from canon.errors import ClaimError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

HASHES: Final = {"sha256": sha256, "sha384": sha384, "sha512": sha512}
"""Those that are trusted."""

_MOST_BYTES: Final = 1 << 20
_SECONDS: Final = 30
_KIND: Final = "application/timestamp-query"


@dataclass(frozen=True, eq=False)
class Token:
    """A parsed token; nothing about it has been checked yet."""

    response: Any
    """rfc3161-client's."""

    algorithm: str
    imprint: bytes
    certificates: tuple[Certificate, ...]
    signer: Certificate | None
    """None: the token does not carry it."""

    serial: int
    time: datetime

    def stamps(self, data: bytes) -> bool:
        """Whether it is about these bytes."""
        return self.algorithm in HASHES and HASHES[self.algorithm](data).digest() == self.imprint


def query(data: bytes) -> Any:
    """A request to stamp `data`, with a nonce; `as_bytes()` is what goes to the authority."""
    need_libraries()
    from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

    return TimestampRequestBuilder().data(data).hash_algorithm(HashAlgorithm.SHA256).build()


def fetch(url: str, data: bytes) -> bytes:
    """Have an authority stamp `data`; nothing but a hash leaves this machine."""
    from urllib.error import URLError
    from urllib.request import Request, urlopen

    if not url.startswith(("http://", "https://")):
        raise ClaimError("an authority's address begins with http:// or https://", where=url)
    asked = query(data)
    request = Request(url, data=asked.as_bytes(), headers={"Content-Type": _KIND})
    try:
        with urlopen(request, timeout=_SECONDS) as answer:
            token = bytes(answer.read(_MOST_BYTES + 1))
    except (URLError, OSError, ValueError) as error:
        raise ClaimError(
            f"the time-stamping authority does not answer: {error}",
            where=url,
            hint="Use --request here and --attach later, or another authority",
        ) from error
    found = parse_token(token)
    if not found.stamps(data) or found.response.tst_info.nonce != asked.nonce:
        raise ClaimError("the authority's answer is for another question", where=url)
    return token


def parse_token(data: bytes) -> Token:
    """Read a response; whatever is wrong with it is a ClaimError."""
    need_libraries()
    from asn1crypto import cms, core, tsp
    from cryptography import x509
    from rfc3161_client import decode_timestamp_response

    if len(data) > _MOST_BYTES:
        raise ClaimError("the time-stamp is larger than 1 MiB, which none is")
    with hostile("time-stamp"):
        _check_granted(tsp.PKIStatusInfo.load(core.Sequence.load(data, strict=True)[0].dump()))
        response = tsp.TimeStampResp.load(data, strict=True)
        signed = response["time_stamp_token"]["content"]
        _check_unsigned(signed)
        # Many authorities write certificates in the order of the chain; rfc3161-client wants them sorted. They are not
        # part of what is signed.
        inner = sorted((item for item in signed["certificates"]), key=lambda item: bytes(item.dump()))
        if len(inner) > 1:
            signed["certificates"] = cms.CertificateSet(inner)
        parsed = decode_timestamp_response(response.dump())
        certificates = tuple(x509.load_der_x509_certificate(item.dump()) for item in inner)
        info = signed["encap_content_info"]["content"].parsed
        signer = signed["signer_infos"][0]
        named = signer["sid"].chosen
        serial = named["serial_number"].native
        issuer = named["issuer"].dump()
        own = [c for c in certificates if c.serial_number == serial and c.issuer.public_bytes() == issuer]
        return Token(
            parsed,
            str(info["message_imprint"]["hash_algorithm"]["algorithm"].native),
            bytes(info["message_imprint"]["hashed_message"].native),
            certificates,
            own[0] if own and _names(signer, own[0]) else None,
            int(info["serial_number"].native),
            parsed.tst_info.gen_time,
        )


def _check_granted(status: Any) -> None:
    if status["status"].native != "granted":
        words = status["status_string"].native or ""
        raise ClaimError(f"the authority did not grant it: {status['status'].native} {words}".rstrip()[:200])


def _check_unsigned(signed: Any) -> None:
    """Fields that no signature covers: they must be as RFC 3161 has them."""
    (signer,) = signed["signer_infos"]
    if (
        signed["version"].native != "v3"
        or signer["version"].native != "v1"
        or signer["sid"].name != "issuer_and_serial_number"
    ):
        raise ClaimError("the time-stamp is damaged: it is not of the version that RFC 3161 asks for")
    if signed["encap_content_info"]["content_type"].native != "tst_info":
        raise ClaimError("the time-stamp is damaged: it does not hold time-stamp information")
    algorithm, digest = signer["signature_algorithm"], signer["digest_algorithm"]["algorithm"].native
    kind = algorithm["algorithm"].native
    hashed = algorithm.hash_algo if kind not in ("rsassa_pkcs1v15", "ed25519") else digest
    listed = {item["algorithm"].native for item in signed["digest_algorithms"]}
    if algorithm.signature_algo not in ("rsassa_pkcs1v15", "rsassa_pss", "ecdsa", "ed25519") or hashed != digest:
        raise ClaimError("the time-stamp is damaged: its algorithms contradict each other")
    if digest not in listed or digest not in HASHES:
        raise ClaimError(f"the time-stamp is signed over the hash '{digest}', which is not trusted")


def _names(signer: Any, certificate: Certificate) -> bool:
    """Whether the signed attributes name this very certificate, as RFC 3161 asks for."""
    from cryptography.hazmat.primitives import hashes

    known: dict[str, Any] = {
        "sha1": hashes.SHA1,
        "sha256": hashes.SHA256,
        "sha384": hashes.SHA384,
        "sha512": hashes.SHA512,
    }
    for attribute in signer["signed_attrs"]:
        if attribute["type"].native == "signing_certificate_v2":
            first = attribute["values"][0]["certs"][0]
            name = first["hash_algorithm"]["algorithm"].native or "sha256"
            return name in known and certificate.fingerprint(known[name]()) == first["cert_hash"].native
        if attribute["type"].native == "signing_certificate":
            first = attribute["values"][0]["certs"][0]
            return certificate.fingerprint(known["sha1"]()) == bytes(first["cert_hash"].native)
    raise ClaimError("the time-stamp does not say which certificate signed it")
