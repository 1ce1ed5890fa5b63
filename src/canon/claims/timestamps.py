"""What RFC 3161 time-stamps show, to somebody who trusts a few roots.

A token is accepted only if rfc3161-client accepts it; what is looked at here beside that makes refusals speak, and
closes what it leaves open: dates as of today, revocation, and the algorithm of the hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from canon.claims.canonical import hostile, write_time
from canon.claims.claim import Claim
from canon.claims.tokens import HASHES, Token, parse_token
from canon.claims.trust import Trust, chain, check_dates, check_revocations, common_name
from canon.errors import ClaimError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


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


def verify_token(token: Token, data: bytes, trust: Trust, moment: datetime) -> Stamp:
    """What a token shows about `data` to somebody who asks at `moment`.

    Raises:
        ClaimError: It shows nothing; the message says why.
    """
    if token.algorithm not in HASHES:
        raise ClaimError(f"it uses the hash '{token.algorithm}', which is not trusted")
    if not token.stamps(data):
        raise ClaimError("it is for another document: its hash is not this claim's")
    if not trust.roots:
        raise ClaimError("no root of an authority was given to check it against")
    with hostile("time-stamp"):
        return _verified(token, HASHES[token.algorithm](data).digest(), trust, moment)


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
