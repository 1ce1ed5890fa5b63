"""A time-stamping authority for the demo alone: `openssl ts` with a root that is made for the occasion.

A real claim is stamped by authorities that somebody else runs. Here both sides are played, and so is the authority.
"""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from canon.claims import Claim, Trust

CONFIGURATION: Final = """[tsa]
default_tsa = one
[one]
serial = {folder}/serial
signer_cert = {folder}/signer.pem
signer_key = {folder}/signer.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
ess_cert_id_alg = sha256
"""


def obstacle() -> str | None:
    """Why no claim can be made here; None where one can."""
    try:
        import canon.claims
        from canon.claims.keys import need_libraries

        assert canon.claims, "loaded"
        need_libraries()
    except ImportError as error:
        return f"a package is missing ({error.name or error}); install canon-nso[claims]"
    return None if shutil.which("openssl") else "there is no openssl to stamp it with"


class DemoAuthority:
    """Root and signer in a folder; `stamp` answers as an authority would."""

    def __init__(self, folder: Path) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        self.folder = folder
        root_key, root = _certificate("Demo root")
        key, signer = _certificate("Demo time-stamps", root_key, root)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "signer.key").write_bytes(private)
        (folder / "signer.pem").write_bytes(signer.public_bytes(Encoding.PEM))
        (folder / "root.pem").write_bytes(root.public_bytes(Encoding.PEM))
        (folder / "serial").write_text("01\n", encoding="utf-8")
        (folder / "tsa.cnf").write_text(CONFIGURATION.format(folder=folder), encoding="utf-8")

    def stamp(self, claim: Claim) -> Claim:
        """The claim with a time-stamp."""
        from canon.claims import attach, query

        (self.folder / "query").write_bytes(query(claim.encode()).as_bytes())
        subprocess.run(
            ["openssl", "ts", "-reply", "-config", str(self.folder / "tsa.cnf"), "-queryfile",
             str(self.folder / "query"), "-out", str(self.folder / "answer")],
            capture_output=True, check=True,
        )  # fmt: skip
        return attach(claim, (self.folder / "answer").read_bytes())

    @property
    def trust(self) -> Trust:
        """What a verifier is given who trusts this authority."""
        from canon.claims import Trust

        return Trust.load([self.folder / "root.pem"])


def _certificate(name: str, issuer_key: Any = None, issuer: Any = None) -> tuple[Any, Any]:
    """A root, or a signer of time-stamps below one."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), critical=True)
    return key, builder.sign(issuer_key or key, hashes.SHA256())
