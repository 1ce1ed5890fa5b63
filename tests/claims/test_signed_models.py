"""Models signed with OpenSSF Model Signing, by its own library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import canon
from canon import claims
from canon.claims import Used, examine
from canon.errors import ClaimError
from canon.verify.digest import file_digest
from tests.claims.owner import Owner
from tests.watermarks.small import small_net


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a card and a signature over both."""
    import model_signing

    folder = tmp_path_factory.mktemp("signed")
    model = folder / "model"
    model.mkdir()
    canon.save(small_net(), model / "owner.safetensors", architecture="resnet18")
    (model / "README.md").write_text("a model")
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "key.pub").write_bytes(public)
    signing = model_signing.signing.Config().use_elliptic_key_signer(private_key=folder / "key.pem")
    signing.sign(model, model / "model.sig")
    return folder


def test_a_signature_is_recognised(signed: Path) -> None:
    found = claims.find_signature(signed / "model" / "owner.safetensors")
    assert found == signed / "model" / "model.sig"
    read = claims.read_signature(found)
    assert set(read.files) == {"README.md", "owner.safetensors"}
    digest = file_digest(signed / "model" / "owner.safetensors")
    provenance = read.provenance(digest)
    assert (provenance["kind"], provenance["method"], provenance["covers_file"]) == (
        "openssf-model-signing",
        "key",
        True,
    )
    assert provenance["checked"] is None
    assert claims.provenance_of(signed / "model" / "owner.safetensors") == provenance
    assert claims.find_signature(signed / "key.pem") is None
    assert claims.provenance_of(signed / "key.pem") is None


def test_its_own_library_checks_it(signed: Path, tmp_path: Path) -> None:
    model, signature = signed / "model", signed / "model" / "model.sig"
    assert claims.check_signed_model(model, signature, signed / "key.pub").checked is not None
    (tmp_path / "other.pub").write_bytes(
        ec.generate_private_key(ec.SECP256R1())
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(ClaimError, match="does not hold"):
        claims.check_signed_model(model, signature, tmp_path / "other.pub")


def test_a_signature_that_contradicts_itself(signed: Path, tmp_path: Path) -> None:
    import base64
    import json

    bundle = json.loads((signed / "model" / "model.sig").read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    statement["predicate"]["resources"][0]["digest"] = "0" * 64
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (tmp_path / "model.sig").write_text(json.dumps(bundle))
    with pytest.raises(ClaimError, match="contradicts itself"):
        claims.read_signature(tmp_path / "model.sig")


def test_a_claim_to_a_signed_model(signed: Path, owner: Owner, new_owner: Callable[..., Owner]) -> None:
    signature = claims.read_signature(signed / "model" / "model.sig")
    made = owner.commit(model=signature, watermark_keys=[])
    digest = file_digest(signed / "model" / "owner.safetensors")
    present = owner.present(made)
    good = Used(owner.model, files={"reference": [digest]}, signature=signature)
    assert examine(present, good).answer == "first"
    for wrong, message in (
        (Used(owner.model, files={"reference": ["0" * 64]}, signature=signature), "is not among those"),
        (Used(owner.model, signature=signature), "is not among those"),
        (Used(owner.model, files={"reference": [digest]}), "which was not given"),
    ):
        answer = examine(present, wrong)
        assert answer.answer == "nothing shown"
        assert message in answer.reason
