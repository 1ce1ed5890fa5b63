"""RFC 3161 time-stamps: ask for one, and find out what one shows.

Parsing, signatures and certificates are the work of rfc3161-client, asn1crypto and cryptography. A token is accepted
only if rfc3161-client accepts it; what is looked at here beside that makes refusals speak, and closes what it leaves
open: fields outside of the signature, dates as of today, revocation, and the algorithm of the hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256, sha384, sha512
from typing import TYPE_CHECKING, Any, Final

from canon.claims.canonical import hostile, write_time
from canon.claims.claim import Claim
from canon.claims.keys import need_libraries
from canon.claims.trust import Trust, chain, check_dates, check_revocations, common_name
from canon.errors import ClaimError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_HASHES: Final = {"sha256": sha256, "sha384": sha384, "sha512": sha512}
_MOST_BYTES: Final = 1 << 20
_SECONDS: Final = 30
_KIND: Final = "application/timestamp-query"


@dataclass(frozen=True)
class Stamp:
    """What a token shows."""

    time: datetime
    accuracy: timedelta
    authority: str
    policy: str
    serial: int
    root: str
    """The root that its chain ends at."""

    expires: datetime
    """When the first certificate of its chain does."""

    @property
    def earliest(self) -> datetime:
        """The stamped file may have existed only from then on."""
        return self.time - self.accuracy

    @property
    def latest(self) -> datetime:
        """The stamped file existed then; fractions of a second are not read."""
        return self.time + self.accuracy + timedelta(seconds=1)

    def shown(self) -> dict[str, Any]:
        """Plain data, for evidence."""
        return {
            "time": write_time(self.time),
            "accuracy": self.accuracy.total_seconds(),
            "authority": self.authority,
            "policy": self.policy,
            "serial": f"{self.serial:x}",
            "root": self.root,
            "expires": write_time(self.expires),
            "wrong": None,
        }


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
        return self.algorithm in _HASHES and _HASHES[self.algorithm](data).digest() == self.imprint


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


def verify_token(token: Token, data: bytes, trust: Trust, moment: datetime) -> Stamp:
    """What a token shows about `data` to somebody who asks at `moment`.

    Raises:
        ClaimError: It shows nothing; the message says why.
    """
    if token.algorithm not in _HASHES:
        raise ClaimError(f"it uses the hash '{token.algorithm}', which is not trusted")
    if not token.stamps(data):
        raise ClaimError("it is for another document: its hash is not this claim's")
    if not trust.roots:
        raise ClaimError("no root of an authority was given to check it against")
    with hostile("time-stamp"):
        return _verified(token, _HASHES[token.algorithm](data).digest(), trust, moment)


def _verified(token: Token, digest: bytes, trust: Trust, moment: datetime) -> Stamp:
    from cryptography.x509 import ObjectIdentifier
    from rfc3161_client import VerificationError, VerifierBuilder

    leaf = token.signer or _helper(token, trust.helpers)
    certificates = chain(leaf, (*token.certificates, *trust.helpers), trust.roots)
    check_dates(certificates, token.time, "and so was not valid when it stamped")
    policy = token.response.tst_info.policy.dotted_string
    if trust.policies and policy not in trust.policies:
        raise ClaimError(f"it was given under the policy {policy}, which is not among those asked for")
    check_revocations(certificates, trust.revocations, token.time)
    builder = VerifierBuilder(
        roots=[certificates[-1]],
        intermediates=certificates[1:-1],
        tsa_certificate=None if token.signer else leaf,
        policy_id=ObjectIdentifier(policy),
    )
    try:
        builder.build().verify(token.response, digest)
    except (VerificationError, ValueError) as error:
        raise ClaimError(f"its signature or its chain does not hold: {_reason(error)}") from error
    if token.time > moment:
        raise ClaimError(f"it is of {token.time:%Y-%m-%d %H:%M} UTC, which lies in the future")
    check_dates(certificates, moment, "so that its key may have leaked since; time-stamps are renewed before that")
    return Stamp(
        token.time,
        _accuracy(token.response.tst_info.accuracy),
        common_name(leaf),
        policy,
        token.serial,
        common_name(certificates[-1]),
        min(c.not_valid_after_utc for c in certificates),
    )


def check_stamp(data: bytes, token: bytes, trust: Trust) -> Stamp:
    """What a time-stamp beside a file shows about it, such as one of sealed evidence.

    Raises:
        ClaimError: It shows nothing; the message says why.
    """
    return verify_token(parse_token(token), data, trust, trust.moment)


def verify_all(claim: Claim, trust: Trust) -> list[Stamp | str]:
    """What each of a claim's time-stamps shows, or why it shows nothing.

    The last is looked at first. One that was itself stamped by a good later one is judged as of that later one's time:
    certificates that have expired since do not matter then.
    """
    states = [claim.state(count) for count in range(len(claim.tokens) + 1)]
    found: list[Stamp | str] = []
    moments = [trust.moment] * len(claim.tokens)
    for index in reversed(range(len(claim.tokens))):
        try:
            token = parse_token(claim.tokens[index])
            covered = covers(token, states[: index + 1])
            stamp = verify_token(token, states[covered or 0], trust, moments[index])
        except ClaimError as error:
            found.append(error.message)
            continue
        found.append(stamp)
        for earlier in range(covered or 0):
            moments[earlier] = min(moments[earlier], stamp.latest)
    return found[::-1]


def covers(token: Token, states: Sequence[bytes]) -> int | None:
    """How many time-stamps the file had when this one was made; None: it is about another file."""
    return next((count for count, state in enumerate(states) if token.stamps(state)), None)


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
    if digest not in listed or digest not in _HASHES:
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


def _helper(token: Token, helpers: Sequence[Certificate]) -> Certificate:
    """The signer's certificate, where it came beside the token."""
    (signer,) = token.response.signed_data.signer_infos
    for certificate in helpers:
        if (certificate.issuer, certificate.serial_number) == (signer.issuer, signer.serial_number):
            return certificate
    raise ClaimError("it does not carry the certificate that signed it, and none that fits was given")


def _accuracy(given: Any) -> timedelta:
    if given is None:
        return timedelta(0)
    return timedelta(seconds=given.seconds or 0, milliseconds=given.millis or 0, microseconds=given.micros or 0)


def _reason(error: Exception) -> str:
    """The part of a library's message that a person can use."""
    text = str(error)
    return text.rsplit("Verify error:", 1)[-1].split('"')[0].strip()[:120]
