"""Signing keys of every kind, sealed documents and sealed cases."""

from __future__ import annotations

import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from canon import claims
from canon.claims.keys import signer_pem
from canon.errors import CanonError, ClaimError
from tests.claims.owner import Owner

KINDS: dict[str, Any] = {
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
}


def written(path: Path, key: Any, form: PrivateFormat, password: bytes | None = None) -> Path:
    lock: Any = BestAvailableEncryption(password) if password else NoEncryption()
    path.write_bytes(key.private_bytes(Encoding.PEM, form, lock))
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.OpenSSH])
def test_keys_sign_and_their_signatures_hold(kind: str, form: PrivateFormat, tmp_path: Path) -> None:
    key = claims.load_key(written(tmp_path / "key", KINDS[kind](), form))
    document, pem = claims.open_sealed(claims.seal({"verdict": "proved"}, key))
    assert document == {"verdict": "proved"}
    assert pem == signer_pem(key)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen on this machine")
def test_a_key_of_ssh_keygen(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "id")], check=True)
    key = claims.load_key(tmp_path / "id")
    assert claims.open_sealed(claims.seal([1], key))[0] == [1]


def test_a_locked_key(tmp_path: Path) -> None:
    path = written(tmp_path / "key", KINDS["ed25519"](), PrivateFormat.PKCS8, b"secret")
    claims.load_key(path, b"secret")
    with pytest.raises(ClaimError, match="locked with a password"):
        claims.load_key(path)
    with pytest.raises(ClaimError, match="no private key"):
        claims.load_key(path, b"wrong")


def test_keys_that_are_not_used(tmp_path: Path) -> None:
    for key in (dsa.generate_private_key(2048), ec.generate_private_key(ec.SECP256K1())):
        with pytest.raises(ClaimError, match=r"not used here|can be used"):
            claims.load_key(written(tmp_path / "key", key, PrivateFormat.PKCS8))
    with pytest.raises(ClaimError, match="1024 bits is too short"):
        claims.load_key(written(tmp_path / "key", rsa.generate_private_key(65537, 1024), PrivateFormat.PKCS8))
    (tmp_path / "key").write_text("no key")
    with pytest.raises(ClaimError, match="no private key"):
        claims.load_key(tmp_path / "key")


def test_a_new_key_replaces_nothing(tmp_path: Path) -> None:
    claims.new_key(tmp_path / "key")
    with pytest.raises(CanonError, match="exists already"):
        claims.new_key(tmp_path / "key")


def test_a_sealed_document_cannot_be_changed(tmp_path: Path) -> None:
    key, other = claims.new_key(tmp_path / "key"), claims.new_key(tmp_path / "other")
    sealed = claims.seal({"verdict": "inconclusive"}, key)
    changed = claims.seal({"verdict": "proved"}, other)
    claims.open_sealed(sealed, signer_pem(key))
    with pytest.raises(ClaimError, match="another key than the one given"):
        claims.open_sealed(changed, signer_pem(key))
    for position in range(0, len(sealed) - 1, 7):
        with pytest.raises(ClaimError):
            claims.open_sealed(sealed[:position] + bytes([sealed[position] ^ 4]) + sealed[position + 1 :])


def case(folder: Path, key: Any) -> Path:
    return claims.write_case(
        folder / "case",
        evidence=b'{"verdict": "proved"}\n',
        command=["canon", "verify", "a suspect.onnx"],
        key=key,
        report=b"<html></html>",
        claims={"owner.claim": b"claim", "owner.opening": b"opening"},
        attachments={"roots.pem": b"roots"},
    )


def test_a_sealed_case(tmp_path: Path) -> None:
    key = claims.new_key(tmp_path / "key")
    folder = case(tmp_path, key)
    found = claims.check_case(folder, signer_pem(key))
    assert found["evidence"] == {"verdict": "proved"}
    assert (folder / "command.txt").read_text() == "canon verify 'a suspect.onnx'\n"
    done = subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 7
    with pytest.raises(ClaimError, match="exists already"):
        case(tmp_path, key)
    with pytest.raises(ClaimError, match="another key"):
        claims.check_case(folder, signer_pem(claims.new_key(tmp_path / "other")))


def test_a_case_with_a_time_stamp(tmp_path: Path, owner: Owner) -> None:
    key = claims.new_key(tmp_path / "key")
    with owner.authority.served() as url:
        folder = claims.write_case(tmp_path / "case", evidence=b"{}", command=["canon"], key=key, timestamps=[url, url])
    found = claims.check_case(folder, trust=owner.trust())
    assert [stamp["wrong"] for stamp in found["timestamps"]] == [None, None]
    (untrusted, _) = claims.check_case(folder)["timestamps"]
    assert "no root" in untrusted["wrong"]
    sealed, token = folder / "SHA256SUMS.dsse", folder / "SHA256SUMS.dsse.1.tsr"
    words = ["-data", str(sealed), "-in", str(token), "-CAfile", str(owner.authority.root_file)]
    assert subprocess.run(["openssl", "ts", "-verify", *words], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "evidence.json").write_text("{}"), "'evidence.json' was changed"),
        (lambda folder: (folder / "report.html").unlink(), "'report.html' was taken away"),
        (lambda folder: (folder / "more.txt").write_text(""), "'more.txt' was added"),
        (lambda folder: (folder / "more").mkdir(), "'more' was added"),
        (lambda folder: (folder / "SHA256SUMS").write_text(""), "SHA256SUMS was changed"),
        (lambda folder: (folder / "SHA256SUMS.dsse").unlink(), "no sealed case"),
    ],
)
def test_a_case_that_was_touched(tmp_path: Path, change: Any, message: str) -> None:
    folder = case(tmp_path, claims.new_key(tmp_path / "key"))
    change(folder)
    with pytest.raises(ClaimError, match=message):
        claims.check_case(folder)


@pytest.mark.parametrize(("sums", "message"), [(b"", "no evidence"), (b"\xff", "taken away"), (b"x\n", "taken away")])
def test_a_case_that_a_stranger_sealed(tmp_path: Path, sums: bytes, message: str) -> None:
    key = claims.new_key(tmp_path / "key")
    pem = signer_pem(key).encode()
    sums += f"{sha256(pem).hexdigest()}  signer.pem\n".encode()
    for name, data in (("SHA256SUMS", sums), ("signer.pem", pem)):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "SHA256SUMS.dsse").write_bytes(claims.seal(sums.decode("utf-8", "replace"), key))
    (tmp_path / "key").unlink()
    with pytest.raises(ClaimError, match=message):
        claims.check_case(tmp_path)


@pytest.mark.parametrize("name", ["../escaped", "evidence.json", ".hidden", "SHA256SUMS", "a/b"])
def test_names_that_cannot_stand_in_a_case(tmp_path: Path, name: str) -> None:
    key = claims.new_key(tmp_path / "key")
    with pytest.raises(ClaimError, match="cannot stand in a case"):
        claims.write_case(tmp_path / "case", evidence=b"{}", command=[], key=key, attachments={name: b""})
    assert not (tmp_path / "case").exists()
