"""What a verifier takes on trust: certificates and revocation lists that it was given, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from canon.claims.keys import need_libraries
from canon.errors import ClaimError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, CertificateRevocationList, RevokedCertificate

_BLOCK: Final = re.compile(rb"-----BEGIN (CERTIFICATE|X509 CRL)-----.+?-----END \1-----", re.DOTALL)
_LONGEST_CHAIN: Final = 6
_MOST_ISSUERS: Final = 4


@dataclass(frozen=True)
class Trust:
    """Whose time-stamps count."""

    roots: tuple[Certificate, ...] = ()
    """Certificates issued by nobody else: where a chain must end."""

    helpers: tuple[Certificate, ...] = ()
    """Other certificates, which may stand in a chain and are not trusted."""

    revocations: tuple[CertificateRevocationList, ...] = ()
    policies: tuple[str, ...] = ()
    """Policies (object identifiers) that time-stamps must be given under; none: any."""

    now: datetime | None = None
    """When the question is asked; None: when the clock says."""

    @property
    def moment(self) -> datetime:
        """Now."""
        return self.now or datetime.now(UTC)

    @staticmethod
    def load(paths: Iterable[str | Path], *, policies: Sequence[str] = (), now: datetime | None = None) -> Trust:
        """Read PEM files: roots, other certificates and revocation lists, in any order."""
        need_libraries()
        from cryptography import x509

        certificates: list[Certificate] = []
        lists: list[CertificateRevocationList] = []
        for path in paths:
            found = list(_BLOCK.finditer(Path(path).read_bytes()))
            if not found:
                raise ClaimError("the file holds no certificate and no revocation list as PEM", where=str(path))
            for block in found:
                try:
                    if block[1] == b"CERTIFICATE":
                        certificates.append(x509.load_pem_x509_certificate(block[0]))
                    else:
                        lists.append(x509.load_pem_x509_crl(block[0]))
                except ValueError as error:
                    raise ClaimError("a certificate or revocation list is damaged", where=str(path)) from error
        # Its own signature says nothing about a root, and old ones are made with hashes that are refused elsewhere.
        roots = tuple(c for c in certificates if c.issuer == c.subject)
        helpers = tuple(c for c in certificates if c not in roots)
        return Trust(roots, helpers, tuple(lists), tuple(policies), now)


def chain(leaf: Certificate, others: Sequence[Certificate], roots: Sequence[Certificate]) -> list[Certificate]:
    """The way from a certificate to a root; where there are several, any that ends at a root.

    Raises:
        ClaimError: All end at a root that is not trusted, or break off.
    """
    return _chain([leaf], others, roots)


def _chain(found: list[Certificate], others: Sequence[Certificate], roots: Sequence[Certificate]) -> list[Certificate]:
    last = found[-1]
    if last in roots:
        return found
    if last.issuer == last.subject:
        raise ClaimError(f"it ends at the root '{common_name(last)}', which is not among those given")
    named = [c for c in (*roots, *others) if c.subject == last.issuer and c not in found]
    issuer = last.issuer.rfc4514_string()[:120]
    failure = ClaimError(f"it ends at '{issuer}', which is neither in the time-stamp nor among the roots given")
    if named:
        failure = ClaimError(f"its chain is broken: '{common_name(last)}' was not signed by the '{issuer}' at hand")
    for above in named[:_MOST_ISSUERS] if len(found) < _LONGEST_CHAIN else ():
        if not issued_by(last, above):
            continue
        try:
            return _chain([*found, above], others, roots)
        except ClaimError as error:
            failure = error
    raise failure


def check_dates(certificates: Sequence[Certificate], moment: datetime, when: str) -> None:
    """Raise if a certificate is not valid at a moment."""
    for certificate in certificates:
        start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not start <= moment <= end:
            side = f"expired on {end:%Y-%m-%d}" if moment > end else f"is valid from {start:%Y-%m-%d} only"
            raise ClaimError(f"the certificate of '{common_name(certificate)}' {side}, {when}")


def check_revocations(
    certificates: Sequence[Certificate], lists: Sequence[CertificateRevocationList], stamped: datetime
) -> None:
    """Raise if a certificate of a chain was revoked so that a time-stamp of `stamped` no longer counts."""
    for certificate, issuer in pairwise(certificates):
        for revoked in _revoked(certificate, issuer, lists):
            if not _harmless(revoked, stamped):
                when = f"{revoked.revocation_date_utc:%Y-%m-%d}"
                raise ClaimError(f"the certificate of '{common_name(certificate)}' was revoked on {when}")


def _revoked(
    certificate: Certificate, issuer: Certificate, lists: Sequence[CertificateRevocationList]
) -> Iterator[RevokedCertificate]:
    for entries in lists:
        if entries.issuer != certificate.issuer:
            continue
        if not entries.is_signature_valid(issuer.public_key()):  # type: ignore[arg-type]
            raise ClaimError(f"the revocation list of '{common_name(issuer)}' was not signed by it")
        revoked = entries.get_revoked_certificate_by_serial_number(certificate.serial_number)
        if revoked is not None:
            yield revoked


def _harmless(revoked: RevokedCertificate, stamped: datetime) -> bool:
    """RFC 3161, section 4.1: with one of these reasons, time-stamps from before the revocation stay good."""
    from cryptography.x509 import CRLReason, ExtensionNotFound, ReasonFlags

    try:
        reason = revoked.extensions.get_extension_for_class(CRLReason).value.reason
    except (ExtensionNotFound, ValueError):
        return False
    gentle = (
        ReasonFlags.unspecified, ReasonFlags.affiliation_changed, ReasonFlags.superseded,
        ReasonFlags.cessation_of_operation,
    )  # fmt: skip
    return reason in gentle and stamped < revoked.revocation_date_utc


def issued_by(certificate: Certificate, issuer: Certificate) -> bool:
    """Whether `issuer` signed `certificate`."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return False
    return True


def common_name(certificate: Certificate) -> str:
    """What a certificate's holder is called, for messages."""
    return certificate.subject.rfc4514_string()[:120]
