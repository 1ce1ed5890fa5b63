"""Models signed with OpenSSF Model Signing (`model-signing`): recognise a signature, and say what it says.

The signature file is a Sigstore bundle around a DSSE envelope around an in-toto statement that lists every file of the
model. Reading it needs nothing but JSON; checking who signed is left to `model_signing`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from canon.claims.canonical import from_base64, from_hex, hostile, parse
from canon.claims.claim import PAYLOAD_TYPE, STATEMENT_TYPE, read_bytes
from canon.errors import ClaimError, import_extra
from canon.verify.digest import file_digest

PREDICATE_TYPE: Final = "https://model_signing/signature/v1.0"
NAMES: Final = ("model.sig", "claims.jsonl")
"""What signature files beside a model are called."""


@dataclass(frozen=True)
class SignedModel:
    """What a signature says; nobody has checked yet who made it."""

    name: str
    digest: str
    """SHA-256 over the digests of all files: one value for the model."""

    files: dict[str, str]
    """SHA-256 of every file, by its path inside the model."""

    signature: str
    """SHA-256 of the signature file."""

    method: str
    """How it was signed: `key`, `certificate` or `sigstore`."""

    checked: str | None = None
    """What was checked, with the key that was given; None: nothing."""

    def covers(self, digest: str) -> bool:
        """Whether a file of this SHA-256 is part of the model."""
        return digest in self.files.values()

    def provenance(self, file: str | None = None) -> dict[str, Any]:
        """For the evidence: what the signature says, and whether it speaks of the file with this SHA-256."""
        return {
            "kind": "openssf-model-signing",
            "model": self.name,
            "digest": self.digest,
            "signature": self.signature,
            "method": self.method,
            "files": len(self.files),
            "covers_file": None if file is None else self.covers(file),
            "checked": self.checked,
        }


def find_signature(model: str | Path) -> Path | None:
    """The signature file that belongs to a model file or folder, if there is one."""
    path = Path(model)
    folder = path if path.is_dir() else path.parent
    beside = [folder / name for name in (*NAMES, f"{path.name}.sig")]
    return next((file for file in beside if file.is_file() and _is_signature(file)), None)


def read_signature(path: str | Path) -> SignedModel:
    """Read a signature file and check that it agrees with itself."""
    data = read_bytes(path)
    with hostile("model's signature"):
        bundle = parse(data, "model's signature")
        envelope, material = bundle["dsseEnvelope"], bundle["verificationMaterial"]
        statement = parse(from_base64(envelope["payload"], "model's signature"), "model's signature")
        kinds = (envelope["payloadType"], statement["_type"], statement["predicateType"])
        if kinds != (PAYLOAD_TYPE, STATEMENT_TYPE, PREDICATE_TYPE):
            raise ClaimError("the file is no signature of a model", where=str(path))
        (subject,) = statement["subject"]
        resources = statement["predicate"]["resources"]
        together = sha256(b"".join(from_hex(item["digest"], "model's signature", 32) for item in resources))
        if together.hexdigest() != subject["digest"]["sha256"]:
            raise ClaimError("the model's signature contradicts itself: its digest is not that of its files")
        if any(item["algorithm"] != "sha256" for item in resources):
            raise ClaimError("the model's signature uses another hash than SHA-256", where=str(path))
        files = {str(item["name"]): str(item["digest"]) for item in resources}
        signed = "sigstore" if material.get("tlogEntries") else "certificate"
        method = "key" if "publicKey" in material else signed
        return SignedModel(str(subject["name"]), together.hexdigest(), files, sha256(data).hexdigest(), method)


def provenance_of(model: str | Path) -> dict[str, Any] | None:
    """For the evidence: what the signature beside a model file says; None: there is none."""
    path, found = Path(model), find_signature(model)
    return None if found is None else read_signature(found).provenance(file_digest(path) if path.is_file() else None)


def check_signed_model(model: str | Path, signature: str | Path, public_key: str | Path) -> SignedModel:
    """Have `model_signing` check a signature made with a key, and all files of the model.

    Raises:
        ClaimError: The signature or a file is not as it was signed.
    """
    hashing, verifying = (
        import_extra(f"model_signing.{part}", "claims", "model-signing") for part in ("hashing", "verifying")
    )
    found = read_signature(signature)
    ignored = [Path(signature)]
    try:
        config = verifying.Config().use_elliptic_key_verifier(public_key=Path(public_key))
        config.set_hashing_config(hashing.Config().set_ignored_paths(paths=ignored))
        config.verify(Path(model), Path(signature))
    except Exception as error:
        raise ClaimError(f"the model's signature does not hold: {error!s:.200}", where=str(signature)) from error
    return replace(found, checked="signature and files, with the public key given")


def _is_signature(path: Path) -> bool:
    try:
        read_signature(path)
    except ClaimError:
        return False
    return True
