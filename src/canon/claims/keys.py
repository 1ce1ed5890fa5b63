"""The owner's signing key: a new one, or one that exists as PEM or OpenSSH file. All arithmetic is `cryptography`'s."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from canon._files import atomic_path
from canon.errors import ClaimError, import_extra

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

_FEWEST_RSA_BITS: Final = 2048
_HINT: Final = "Give an Ed25519, ECDSA (P-256, P-384, P-521) or RSA key of 2048 bits or more, as PEM or OpenSSH file"


def need_libraries() -> None:
    """Raise unless the extra is installed."""
    for package in ("cryptography", "rfc3161_client", "securesystemslib", "asn1crypto"):
        import_extra(package, "claims", package)


def generate_key() -> CryptoSigner:
    """Make an Ed25519 key, in memory alone."""
    need_libraries()
    from securesystemslib.signer import CryptoSigner

    return _signer(CryptoSigner.generate_ed25519()._private_key)


def save_key(key: CryptoSigner, path: str | Path) -> None:
    """Write a private key as PEM that its owner alone may read. Nothing is ever overwritten."""
    write_private(path, key.private_bytes)


def new_key(path: str | Path) -> CryptoSigner:
    """Make an Ed25519 key and write it."""
    made = generate_key()
    save_key(made, path)
    return made


def load_key(path: str | Path, password: bytes | None = None) -> CryptoSigner:
    """Read a private key.

    Raises:
        ClaimError: No private key of a kind that is used here, or the password is missing or wrong.
    """
    need_libraries()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    data = Path(path).read_bytes()
    load: Any = load_ssh_private_key if b"BEGIN OPENSSH PRIVATE KEY" in data else load_pem_private_key
    try:
        return _signer(load(data, password))
    except TypeError as error:
        reason = "is locked with a password" if password is None else "is not locked, and a password was given"
        raise ClaimError(f"the private key {reason}", where=str(path)) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ClaimError("the file is no private key that can be used", where=str(path), hint=_HINT) from error


def public_key(pem: str) -> SSlibKey:
    """A public key from its PEM text, which must be in its one spelling."""
    need_libraries()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ClaimError("the owner's public key is damaged, or of a kind that is not used here") from error
    if public_pem(key) != pem:
        raise ClaimError("the owner's public key is damaged: its PEM has another spelling")
    return _verifier(key)


def public_pem(key: Any) -> str:
    """PEM text of a public key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return str(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def signer_pem(signer: CryptoSigner) -> str:
    """PEM text of the public half."""
    return public_pem(signer._private_key.public_key())


def write_private(path: str | Path, data: bytes, *, force: bool = False) -> None:
    """Write a file that its owner alone may read."""
    with atomic_path(path, force=force) as target, open(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(data)


def _signer(private: Any) -> CryptoSigner:
    from securesystemslib.signer import CryptoSigner

    return CryptoSigner(private, _verifier(private.public_key()))


def _verifier(key: Any) -> SSlibKey:
    """The key in securesystemslib's form, named by the SHA-256 of its DER encoding."""
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from securesystemslib.signer import SSlibKey

    if isinstance(key, RSAPublicKey) and key.key_size < _FEWEST_RSA_BITS:
        raise ClaimError(f"an RSA key of {key.key_size} bits is too short", hint=_HINT)
    try:
        name = sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
        found = SSlibKey.from_crypto(key, keyid=name)
    except (ValueError, AttributeError) as error:
        raise ClaimError("keys of this kind are not used here", hint=_HINT) from error
    return found
