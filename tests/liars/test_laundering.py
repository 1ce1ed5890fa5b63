"""An honest key, and somebody's model moved and rescaled until it reads: worth no more than the date of either."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import nn

from canon import claims, watermarks
from canon.api import JudgeOptions, check_evidence, judge
from canon.claims import Committed, Presented, Trust
from canon.verify import register
from canon.verify.verdict import Inconclusive, Matches, Proved
from canon.watermarks import Key, Message
from tests.claims.authority import Authority
from tests.liars.laundering import laundered
from tests.liars.verifier import ALPHA, luck
from tests.liars.victims import images, victim

EXAMPLE = images().train_images[:2]
AS_GIVEN = JudgeOptions(recover=False)
NOW = datetime.now(UTC)
SCHEMES = watermarks.names()


@lru_cache
def drawn(scheme: str) -> Key:
    """A key that was drawn for the liar's own model, and is as good as any."""
    message = Message.random(5, 192 if scheme == "lottery" else 40)
    return watermarks.get(scheme).draw_key(victim(2), images(), message=message, seed=7)


@lru_cache
def reference(scheme: str, seed: int = 1) -> nn.Module:
    """A model, made to read as the liar wishes."""
    return laundered(victim(seed), drawn(scheme), EXAMPLE)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("launderers") / "authority")


def stamped(authority: Authority, signer: Path, model: nn.Module, key: Key) -> Committed:
    made = claims.commit(model, key=claims.new_key(signer), watermark_keys=[key])
    return Committed(made.claim.stamped(authority.stamp(made.claim.encode())), made.opening)


def presented(made: Committed, authority: Authority, days: int) -> Presented:
    trust = Trust.load([authority.root_file], now=NOW + timedelta(days=9))
    seen = NOW + timedelta(days=days)
    return Presented(made.claim, made.opening, trust, suspect_date=seen, suspect_date_source="an archive of the web")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_function_stays_and_the_key_reads(scheme: str) -> None:
    torch.testing.assert_close(reference(scheme)(EXAMPLE), victim(1)(EXAMPLE))
    before, after = (watermarks.get(scheme).extract(m, drawn(scheme), EXAMPLE) for m in (victim(1), reference(scheme)))
    assert luck(after) <= ALPHA < 0.01 < luck(before)


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_with_the_suspects_own_model_it_says_what_it_is_worth(scheme: str, by_key: bool) -> None:
    mine = reference(scheme)
    anchor = {"layout_key": register(mine, EXAMPLE)} if by_key else {"reference": mine}
    found = judge(victim(1), EXAMPLE, **anchor, watermark_key=drawn(scheme), options=AS_GIVEN)
    assert found.answers.network.answer == "equal"
    assert found.answers.mark.answer == "read", "a verifier that takes over the order reads what was wished"
    assert isinstance(found.verdict, Matches)
    assert "can be made afterwards" in found.verdict.reason
    check_evidence(found.evidence)


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_with_another_model_it_says_nothing(scheme: str, by_key: bool) -> None:
    mine = reference(scheme, 2)
    anchor = {"layout_key": register(mine, EXAMPLE)} if by_key else {"reference": mine}
    found = judge(victim(1), EXAMPLE, **anchor, watermark_key=drawn(scheme), options=AS_GIVEN)
    assert found.answers.network.answer in ("unrelated", "not decided")
    assert found.answers.mark.answer == "unread"
    assert not isinstance(found.verdict, Proved | Matches)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_claim_makes_more_of_it(scheme: str, authority: Authority, tmp_path: Path) -> None:
    """The key was claimed long before with the liar's own model, or both are claimed when the suspect is there."""
    mine, key = reference(scheme), drawn(scheme)
    of_old = presented(stamped(authority, tmp_path / "old.pem", victim(2), key), authority, 3)
    found = judge(victim(1), EXAMPLE, reference=mine, watermark_key=key, claim=of_old, options=AS_GIVEN)
    assert found.answers.priority.answer == "nothing shown"
    assert isinstance(found.verdict, Matches)
    today = presented(stamped(authority, tmp_path / "new.pem", mine, key), authority, -30)
    found = judge(victim(1), EXAMPLE, reference=mine, watermark_key=key, claim=today, options=AS_GIVEN)
    assert found.answers.priority.answer == "not first"
    assert isinstance(found.verdict, Inconclusive)
