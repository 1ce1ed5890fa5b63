"""A time-stamping authority of our own: certificates from `cryptography`, tokens from `openssl ts`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

POLICY = "1.2.3.4.1"
CONFIGURATION = """[tsa]
default_tsa = one
[one]
serial = {folder}/serial
signer_cert = {folder}/signer.pem
signer_key = {folder}/signer.key
certs = {folder}/between.pem
signer_digest = sha256
default_policy = {policy}
digests = sha256, sha512
accuracy = secs:{accuracy}
ess_cert_id_alg = sha256
"""

Days = tuple[float, float]


def named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass
class Holder:
    """A key and its certificate."""

    name: str
    key: Any
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def holder(
    name: str,
    issuer: Holder | None = None,
    *,
    stamps: bool = False,
    days: Days = (-400, 4000),
    key: Any = None,
) -> Holder:
    """A root without an issuer, a certificate authority, or a signer of time-stamps."""
    key, now = key or ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer.name if issuer else name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=not stamps, path_length=None), critical=True)
    )
    if stamps:
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
        builder = builder.add_extension(purposes, critical=True)
    return Holder(name, key, builder.sign(issuer.key if issuer else key, hashes.SHA256()))


@dataclass
class Authority:
    """Root, authority between, signer; `stamp` answers a query."""

    folder: Path
    days: Days = (-400, 4000)
    """Validity of the signer's certificate."""
    policy: str = POLICY
    accuracy: int = 0
    root: Holder = field(default_factory=lambda: holder("Root"))
    between: Holder = field(init=False)
    signer: Holder = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.between = holder("Between", self.root)
        self.signer = holder("Stamps", self.between, stamps=True, days=self.days)
        self.install()

    def install(self) -> None:
        """Write what openssl reads."""
        private = self.signer.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (self.folder / "signer.key").write_bytes(private)
        (self.folder / "signer.pem").write_bytes(self.signer.pem)
        (self.folder / "between.pem").write_bytes(self.between.pem)
        self.root_file.write_bytes(self.root.pem)
        (self.folder / "serial").write_text("01\n")
        values = {"folder": self.folder, "policy": self.policy, "accuracy": self.accuracy}
        (self.folder / "tsa.cnf").write_text(CONFIGURATION.format(**values))

    @property
    def root_file(self) -> Path:
        return self.folder / "root.pem"

    def answer(self, query: bytes) -> bytes:
        """What `openssl ts -reply` says to a query."""
        (self.folder / "query").write_bytes(query)
        words = ["-config", str(self.folder / "tsa.cnf"), "-queryfile", str(self.folder / "query")]
        done = subprocess.run(
            ["openssl", "ts", "-reply", *words, "-out", str(self.folder / "answer")], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return (self.folder / "answer").read_bytes()

    def stamp(self, data: bytes) -> bytes:
        from canon.claims import query

        return self.answer(query(data).as_bytes())

    def revocations(self, reason: x509.ReasonFlags | None, when: datetime) -> Path:
        """A list on which the signer's certificate stands."""
        entry = x509.RevokedCertificateBuilder().serial_number(self.signer.certificate.serial_number)
        entry = entry.revocation_date(when)
        if reason is not None:
            entry = entry.add_extension(x509.CRLReason(reason), critical=False)
        now = datetime.now(UTC)
        built = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(named("Between"))
            .last_update(now)
            .next_update(now + timedelta(days=30))
            .add_revoked_certificate(entry.build())
            .sign(self.between.key, hashes.SHA256())
        )
        path = self.folder / f"revoked-{reason}.pem"
        path.write_bytes(built.public_bytes(Encoding.PEM))
        return path

    @contextmanager
    def served(self) -> Iterator[str]:
        """The authority at an address of this machine."""
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.headers["Content-Type"] == "application/timestamp-query"
                body = answer(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Type", "application/timestamp-reply")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return None

        with HTTPServer(("127.0.0.1", 0), Handler) as server, pytest.MonkeyPatch.context() as patch:
            patch.setenv("no_proxy", "*")  # whatever stands between this machine and others
            thread = Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/"
            finally:
                server.shutdown()
                thread.join()
