"""Time-stamps of a real authority, good and bad in every way that matters."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import ReasonFlags

from canon import claims
from canon.claims import Claim, Committed, Stamp, Trust
from canon.claims.tokens import fetch, parse_token
from canon.errors import ClaimError
from tests.claims.authority import Authority, holder
from tests.claims.owner import LATER, Owner

NOW = datetime.now(UTC)


def only(claim: Claim, trust: Trust) -> Stamp | str:
    (found,) = claims.verify_all(claim, trust)
    return found


def why(claim: Claim, trust: Trust) -> str:
    found = only(claim, trust)
    assert isinstance(found, str), "it was accepted"
    return found


def test_a_good_one_shows_its_time(owner: Owner, made: Committed) -> None:
    found = only(made.claim, owner.trust())
    assert isinstance(found, Stamp)
    assert abs((found.time - NOW).total_seconds()) < 7200
    assert (found.authority, found.policy, found.root) == ("CN=Stamps", "1.2.3.4.1", "CN=Root")


def test_the_right_policy_is_accepted_and_the_wrong_one_named(owner: Owner, made: Committed) -> None:
    assert isinstance(only(made.claim, owner.trust(policies=("1.2.3.4.1",))), Stamp)
    assert "under the policy 1.2.3.4.1, which is not among" in why(made.claim, owner.trust(policies=("1.2.3.4.2",)))


def test_a_certificate_that_had_expired_when_it_stamped(new_owner: Callable[..., Owner]) -> None:
    late = new_owner(days=(-400, -1))
    assert "expired on" in why(late.commit().claim, late.trust())
    assert "not valid when it stamped" in why(late.commit().claim, late.trust())


def test_a_certificate_that_is_not_valid_yet(new_owner: Callable[..., Owner]) -> None:
    early = new_owner(days=(1, 400))
    assert "is valid from" in why(early.commit().claim, early.trust())


def test_a_certificate_that_has_expired_since(owner: Owner, made: Committed) -> None:
    assert "may have leaked since" in why(made.claim, owner.trust(now=NOW + timedelta(days=4500)))


def test_a_later_time_stamp_keeps_an_earlier_one_alive(new_owner: Callable[..., Owner], tmp_path: Path) -> None:
    short, durable = new_owner(days=(-400, 30)), Authority(tmp_path / "durable")
    first = short.commit().claim
    trust = short.trust(durable.root_file, now=NOW + timedelta(days=60))
    assert isinstance(only(first, short.trust(durable.root_file)), Stamp)
    assert isinstance(only(first, trust), str)
    renewed = claims.attach(first, durable.stamp(first.encode()))
    assert [type(found) for found in claims.verify_all(renewed, trust)] == [Stamp, Stamp]
    beside = claims.attach(first, durable.stamp(first.state(0)))  # stamps the claim, and not its time-stamp
    assert [type(found) for found in claims.verify_all(beside, trust)] == [str, Stamp]


@pytest.mark.parametrize(
    ("reason", "days", "good"),
    [
        (None, 10, False),
        (ReasonFlags.key_compromise, 10, False),
        (ReasonFlags.superseded, -10, False),
        (ReasonFlags.superseded, 10, True),
        (ReasonFlags.cessation_of_operation, 10, True),
    ],
)
def test_revocation(owner: Owner, made: Committed, reason: ReasonFlags | None, days: int, good: bool) -> None:
    listed = owner.authority.revocations(reason, NOW + timedelta(days=days))
    found = only(made.claim, owner.trust(listed))
    assert isinstance(found, Stamp) if good else "was revoked on" in str(found)


def test_a_revocation_list_of_somebody_else(owner: Owner, made: Committed, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other", root=owner.authority.root)
    listed = other.revocations(ReasonFlags.key_compromise, NOW)
    assert "was not signed by it" in why(made.claim, owner.trust(listed))


def test_an_unknown_root(made: Committed, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger", root=holder("Other root"))
    assert "ends at 'CN=Root'" in why(made.claim, Trust.load([stranger.root_file], now=LATER))
    assert "no root" in why(made.claim, Trust(now=LATER))


def test_a_root_of_the_same_name(made: Committed, tmp_path: Path) -> None:
    impostor = Authority(tmp_path / "impostor")
    assert "its chain is broken" in why(made.claim, Trust.load([impostor.root_file], now=LATER))


def test_a_root_that_came_with_the_token_is_not_trusted(new_owner: Callable[..., Owner]) -> None:
    one = new_owner()
    (one.authority.folder / "between.pem").write_bytes(one.authority.between.pem + one.authority.root.pem)
    stranger = new_owner()
    made = one.commit()
    stranger.authority.root_file.write_bytes(holder("Other root").pem)
    assert "root 'CN=Root', which is not among those given" in why(made.claim, stranger.trust())


def test_one_of_two_ways_ends_at_a_known_root(new_owner: Callable[..., Owner]) -> None:
    """The authority between was certified by an old root and by a new one; the token carries both."""
    one = new_owner()
    old = holder("Old root")
    cross = holder("Between", old, key=one.authority.between.key)
    (one.authority.folder / "between.pem").write_bytes(
        cross.pem + old.pem + one.authority.between.pem + one.authority.root.pem
    )
    made = one.commit()
    assert isinstance(only(made.claim, one.trust()), Stamp)
    one.authority.root_file.write_bytes(old.pem)
    assert isinstance(only(made.claim, one.trust()), Stamp)


def test_an_intermediate_certificate_is_no_root(owner: Owner, made: Committed) -> None:
    between = owner.authority.folder / "between.pem"
    assert "no root" in why(made.claim, Trust.load([between], now=LATER))


def test_a_broken_chain(new_owner: Callable[..., Owner]) -> None:
    broken = new_owner()
    broken.authority.between = holder("Between", broken.authority.root)  # same name, another key
    broken.authority.install()
    assert "was not signed by" in why(broken.commit().claim, broken.trust())


def test_a_missing_link(new_owner: Callable[..., Owner]) -> None:
    gap = new_owner()
    (gap.authority.folder / "between.pem").write_bytes(gap.authority.signer.pem)
    made = gap.commit()
    assert "neither in the time-stamp nor among" in why(made.claim, gap.trust())
    link = gap.authority.folder / "link.pem"
    link.write_bytes(gap.authority.between.pem)
    assert isinstance(only(made.claim, gap.trust(link)), Stamp)


def test_an_issuer_that_is_no_authority(new_owner: Callable[..., Owner]) -> None:
    odd = new_owner()
    odd.authority.between = holder("Between", odd.authority.root, stamps=True)
    odd.authority.signer = holder("Stamps", odd.authority.between, stamps=True)
    odd.authority.install()
    assert "does not hold" in why(odd.commit().claim, odd.trust())


def test_a_token_for_another_hash(owner: Owner, made: Committed) -> None:
    other = owner.commit()
    swapped = Claim(made.claim.envelope, other.claim.tokens)
    assert "for another document" in why(swapped, owner.trust())
    with pytest.raises(ClaimError, match="for another document"):
        claims.attach(Claim(made.claim.envelope), other.claim.tokens[0])


def test_an_authority_with_rsa_keys(new_owner: Callable[..., Owner]) -> None:
    other = new_owner()
    between = holder("Between", other.authority.root, key=rsa.generate_private_key(65537, 2048))
    other.authority.between = between
    other.authority.signer = holder("Stamps", between, stamps=True, key=rsa.generate_private_key(65537, 2048))
    other.authority.install()
    made = other.commit()
    assert isinstance(only(made.claim, other.trust()), Stamp)
    whole = made.claim.tokens[0]
    for position in range(0, len(whole), 3):
        changed = whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :]
        assert isinstance(only(Claim(made.claim.envelope, (changed,)), other.trust()), str), position


def test_a_token_without_certificates(owner: Owner, made: Committed, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(made.claim.state(0))
    words = ["-data", str(tmp_path / "data"), "-sha512", "-out", str(tmp_path / "query")]
    subprocess.run(["openssl", "ts", "-query", *words], capture_output=True, check=True)
    bare = Claim(made.claim.envelope, (owner.authority.answer((tmp_path / "query").read_bytes()),))
    assert "does not carry the certificate" in why(bare, owner.trust())
    beside = [owner.authority.folder / name for name in ("signer.pem", "between.pem")]
    assert isinstance(only(bare, owner.trust(*beside)), Stamp)
    assert "neither in the time-stamp" in why(bare, owner.trust(beside[0]))


def test_an_old_root_with_an_old_hash(new_owner: Callable[..., Owner]) -> None:
    """Roots of many authorities signed themselves with SHA-1; that is no weakness, for nobody relies on it."""
    old = new_owner()
    words = ["-x509", "-new", "-key", "root.key", "-sha1", "-days", "400", "-subj", "/CN=Root", "-out", "root.pem"]
    private = old.authority.root.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (old.authority.folder / "root.key").write_bytes(private)
    subprocess.run(["openssl", "req", *words], cwd=old.authority.folder, capture_output=True, check=True)
    made = old.commit()
    assert isinstance(only(made.claim, old.trust()), Stamp)


def test_a_time_stamp_from_the_future(owner: Owner, made: Committed) -> None:
    assert "lies in the future" in why(made.claim, owner.trust(now=NOW - timedelta(days=1)))


def test_a_refusal_is_named(owner: Owner) -> None:
    with pytest.raises(ClaimError, match="did not grant it: rejection"):
        parse_token(owner.authority.answer(b"no query at all"))


def test_over_the_network(owner: Owner, made: Committed) -> None:
    with owner.authority.served() as url:
        stamped = claims.commit(owner.model, key=owner.signer, timestamps=[url, url]).claim
        assert [type(found) for found in claims.verify_all(stamped, owner.trust())] == [Stamp, Stamp]
    with pytest.raises(ClaimError, match="does not answer"):
        fetch(url, b"data")
    with pytest.raises(ClaimError, match="begins with http"):
        fetch("file:///etc/passwd", b"data")


def test_an_answer_to_another_question(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    old = owner.authority.stamp(b"data")
    monkeypatch.setattr(owner.authority, "answer", lambda query: old)
    with owner.authority.served() as url, pytest.raises(ClaimError, match="another question"):
        fetch(url, b"data")


def test_a_time_stamp_is_attached_once(owner: Owner, made: Committed) -> None:
    with pytest.raises(ClaimError, match="already"):
        claims.attach(made.claim, made.claim.tokens[0])


def test_files_without_certificates_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(ClaimError, match="holds no certificate"):
        Trust.load([tmp_path / "empty.pem"])
