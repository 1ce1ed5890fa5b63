"""Keys that follow from a secret and a claim, for every scheme."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from canon import claims, watermarks
from canon.claims import Committed, Derivation
from canon.errors import ClaimError, WatermarkError
from canon.watermarks import Dataset, Key, Message
from canon.watermarks.derive import Derived, derived_message
from tests.claims.owner import Owner
from tests.watermarks.small import QUICK, small_digits, small_net

SECRET = bytes(range(32))
WHOLLY = {"uchida17", "greedy", "lottery", "ipr_gan", "deepsigns", "ipr_ic"}


@pytest.fixture(scope="module")
def first(owner: Owner) -> Committed:
    """A claim to the secret, before there is a model."""
    return claims.commit(key=owner.signer, secrets=[SECRET])


@pytest.fixture(scope="module")
def data() -> Dataset:
    return small_digits()


def derived(scheme: str, first: Committed, data: Dataset, secret: bytes = SECRET, seed: int = 3) -> Key:
    message = claims.message_of(first.claim, scheme)
    return watermarks.get(scheme).draw_key(small_net(seed), data, message=message, seed=seed, secret=secret)


def again(key: Key, first: Committed, data: Dataset, secret: bytes = SECRET) -> Derivation:
    return claims.rederive(key, small_net(8), data, secret, first.claim, first.opening)


@pytest.mark.parametrize("scheme", watermarks.names())
def test_a_derived_key_is_drawn_again(scheme: str, first: Committed, data: Dataset) -> None:
    found = again(derived(scheme, first, data), first, data)
    assert found.follows, found
    assert found.committed is True
    assert found.wholly == (scheme in WHOLLY)
    assert (scheme == "riga21") == (found.same == ("shapes",)), "only of riga21 nothing but the message follows"


@pytest.mark.parametrize("scheme", sorted(set(watermarks.names()) - {"ipr_gan", "riga21"}))
def test_another_secret_gives_another_key(scheme: str, first: Committed, data: Dataset) -> None:
    found = again(derived(scheme, first, data, secret=bytes(32)), first, data)
    assert found.other
    assert not found.follows


def test_a_key_that_was_drawn_by_seed_does_not_follow(first: Committed, data: Dataset) -> None:
    message = claims.message_of(first.claim, "uchida17")
    found = again(watermarks.get("uchida17").draw_key(small_net(), data, message=message), first, data)
    assert found.other == ("projection",)


def test_a_message_of_choice_does_not_follow(first: Committed, data: Dataset) -> None:
    key = replace(derived("uchida17", first, data), message=Message.from_text("0123456789abcdef"))
    found = again(key, first, data)
    assert (found.message, found.follows) == (False, False)


def test_a_secret_that_was_not_committed_to(first: Committed, data: Dataset, owner: Owner) -> None:
    other = claims.commit(key=owner.signer, secrets=[bytes(32)])
    key = derived("uchida17", other, data)
    found = claims.rederive(key, small_net(), data, SECRET, other.claim, other.opening)
    assert (found.committed, found.follows) == (False, False)


def test_one_changed_number_is_seen(first: Committed, data: Dataset) -> None:
    key = derived("uchida17", first, data)
    projection = key.tensors["projection"].clone()
    projection[3, 4] *= 1.001
    found = again(replace(key, tensors={"projection": projection}), first, data)
    assert found.other == ("projection",)


def test_embedding_with_a_derived_key(first: Committed, data: Dataset) -> None:
    message = claims.message_of(first.claim, "ipr_gan", 32)
    result = watermarks.get("ipr_gan").embed(small_net(), data, message=message, options=QUICK, secret=SECRET)
    assert result.extraction.matched == 32
    assert claims.rederive(result.key, result.model, data, SECRET, first.claim, first.opening).wholly


def test_draws_are_what_they_say() -> None:
    draws = Derived(SECRET, "uchida17", {"conv": (4, 4)})
    values = draws.normal("a", 100, 200)
    assert abs(float(values.mean())) < 0.03
    assert abs(float(values.std()) - 1) < 0.02
    uniform = draws.uniform("a", 100, 200)
    assert abs(float(uniform.mean()) - 0.5) < 0.01
    assert 0 < float(uniform.min()) < float(uniform.max()) <= 1
    assert sorted(draws.order("a", 50).tolist()) == list(range(50))
    assert 0.4 < float(draws.coins("a", 1000).float().mean()) < 0.6
    assert torch.equal(values, Derived(SECRET, "uchida17", {"conv": (4, 4)}).normal("a", 100, 200))
    for other in (
        Derived(SECRET, "greedy", {"conv": (4, 4)}),
        Derived(SECRET, "uchida17", {"conv": (4, 5)}),
        Derived(bytes(32), "uchida17", {"conv": (4, 4)}),
    ):
        assert not torch.equal(values, other.normal("a", 100, 200))
    assert not torch.equal(values, draws.normal("b", 100, 200))


def test_messages_depend_on_signature_and_scheme() -> None:
    one = derived_message(b"signature", "uchida17", 128)
    assert len(one) == 128
    assert one != derived_message(b"signature", "greedy", 128)
    assert one != derived_message(b"signaturf", "uchida17", 128)


def test_a_plugin_that_does_not_say_is_refused(
    first: Committed, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(watermarks.get("uchida17")), "trained", None)
    with pytest.raises(WatermarkError, match="does not say how"):
        derived("uchida17", first, data)


def test_secrets_on_disk(tmp_path: Path) -> None:
    secret = claims.new_secret(tmp_path / "secret")
    assert claims.load_secret(tmp_path / "secret") == secret
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
    (tmp_path / "other").write_text("abc")
    with pytest.raises(ClaimError, match="holds no secret"):
        claims.load_secret(tmp_path / "other")
    with pytest.raises(WatermarkError, match="32 bytes"):
        Derived(b"short", "uchida17", {})
