"""Liars with claims of their own, made today: none gets a strong word against an older suspect or an older claim."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from canon import claims
from canon.api import JudgeOptions, check_evidence, judge
from canon.claims import Committed, Presented, Rival, Trust
from canon.graph import trace
from canon.rewrite import rewrite
from canon.verify.verdict import TABLE, Inconclusive, Matches, Proved, Rule, Verdict
from canon.watermarks import Key
from tests.claims.authority import Authority
from tests.liars import shared
from tests.liars.forgers import FORGERIES, Forger
from tests.liars.victims import images, victim
from tests.preservation import scaling

EXAMPLE = images().train_images[:2]
NOW = datetime.now(UTC)
AS_GIVEN = JudgeOptions(recover=False)
FORGERS = [forger for forgers in FORGERIES.values() for forger in forgers if forger.stopped_by == "nothing"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("liars") / "authority")


@pytest.fixture(scope="module")
def owners(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Committed:
    """The victim's own claim, which was there first."""
    made = committed(authority, tmp_path_factory.mktemp("victim"))
    time.sleep(2.1)  # time-stamps count seconds
    return made


def committed(authority: Authority, folder: Path, *keys: Key) -> Committed:
    made = claims.commit(victim(1), key=claims.new_key(folder / "signer.pem"), watermark_keys=keys)
    return Committed(made.claim.stamped(authority.stamp(made.claim.encode())), made.opening)


def presented(made: Committed, authority: Authority, **changes: Any) -> Presented:
    trust = Trust.load([authority.root_file], now=NOW + timedelta(days=9))
    return Presented(made.claim, made.opening, trust, **changes)


def named(forger: Forger) -> str:
    return f"{forger.scheme}-{forger.name}"


@pytest.mark.parametrize("forger", FORGERS, ids=named)
def test_a_claim_made_today_says_nothing_of_an_older_suspect(
    forger: Forger, authority: Authority, tmp_path: Path
) -> None:
    """The forger copies the victim's model, makes a key that reads it, and commits to both; the suspect was there."""
    key = forger(victim(1), images())
    made = committed(authority, tmp_path, key)
    before = {"suspect_date": NOW - timedelta(days=30), "suspect_date_source": "an archive of the web"}
    found = judge(
        victim(1), EXAMPLE, reference=victim(1), watermark_key=key,
        claim=presented(made, authority, **before), options=AS_GIVEN,
    )  # fmt: skip
    assert found.answers.priority.answer == "not first"
    assert isinstance(found.verdict, Inconclusive), found.verdict
    check_evidence(found.evidence)


def test_a_forger_loses_against_the_owners_older_claim(owners: Committed, authority: Authority, tmp_path: Path) -> None:
    key = FORGERS[0](victim(1), images())
    made = committed(authority, tmp_path, key)
    rival = Rival(owners.claim, owners.opening)
    later = {"suspect_date": NOW + timedelta(days=3), "suspect_date_source": "an upload's record"}
    found = judge(
        victim(1), EXAMPLE, reference=victim(1), watermark_key=key,
        claim=presented(made, authority, rivals=(rival,), **later), options=AS_GIVEN,
    )  # fmt: skip
    assert found.answers.priority.answer == "not first"
    assert isinstance(found.verdict, Inconclusive), found.verdict
    # The owner wins the same dispute, and both claims are shown.
    won = judge(
        victim(1), EXAMPLE, reference=victim(1),
        claim=presented(owners, authority, rivals=(Rival(made.claim, made.opening),), **later), options=AS_GIVEN,
    )  # fmt: skip
    assert isinstance(won.verdict, Proved), won.verdict
    assert len(won.evidence["priority"]["claims"]) == 2
    check_evidence(won.evidence)


def laundered(model: nn.Module) -> nn.Module:
    """The same function with other scales, so that a key made for it reads what the forger wishes."""
    graph, generator = trace(model, EXAMPLE), torch.Generator().manual_seed(5)
    return rewrite(model, graph, {space.id: scaling(graph, space, generator) for space in graph.free})


def test_a_laundered_reference_with_a_claim_of_its_own(owners: Committed, authority: Authority, tmp_path: Path) -> None:
    """The forger rescales the victim's model, makes a key for that, and commits to both today."""
    mine = laundered(victim(1))
    key = FORGERS[0](mine, images())
    made = claims.commit(mine, key=claims.new_key(tmp_path / "signer.pem"), watermark_keys=[key])
    made = Committed(made.claim.stamped(authority.stamp(made.claim.encode())), made.opening)
    older = {"suspect_date": NOW - timedelta(days=30), "suspect_date_source": "an archive of the web"}
    later = {"suspect_date": NOW + timedelta(days=3), "suspect_date_source": "an upload's record"}
    for brought in (
        presented(made, authority, **older),
        presented(made, authority, rivals=(Rival(owners.claim, owners.opening),), **later),
    ):
        found = judge(
            victim(1), EXAMPLE, reference=mine, watermark_key=key, claim=brought, options=AS_GIVEN
        )  # fmt: skip
        assert found.answers.network.answer == "equal"
        assert found.answers.mark.answer == "read"
        assert found.answers.priority.answer == "not first"
        assert isinstance(found.verdict, Inconclusive), found.verdict
        check_evidence(found.evidence)


def test_a_claim_to_something_else_shows_nothing(owners: Committed, authority: Authority) -> None:
    """The owner's claim does not cover a key that was made later, nor another reference."""
    later = {"suspect_date": NOW + timedelta(days=3), "suspect_date_source": "an upload's record"}
    brought = presented(owners, authority, **later)
    key = FORGERS[0](victim(1), images())
    with_key = judge(victim(1), EXAMPLE, reference=victim(1), watermark_key=key, claim=brought, options=AS_GIVEN)
    assert with_key.answers.priority.answer == "nothing shown"
    assert isinstance(with_key.verdict, Matches), with_key.verdict
    other = judge(victim(2), EXAMPLE, reference=victim(2), claim=brought, options=AS_GIVEN)
    assert other.answers.priority.answer == "nothing shown"
    assert not isinstance(other.verdict, Proved)


@pytest.mark.parametrize("case", [shared.public_model, shared.order_of_classes, shared.order_of_pixels])
def test_an_old_key_for_what_the_suspect_has_from_elsewhere_proves_nothing(
    case: Callable[[], shared.Case], authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The liar waits with a key that reads from what others will train; the suspect never saw anything of his."""
    mine, key, suspect, example = case()
    made = claims.commit(mine, key=claims.new_key(tmp_path / "signer.pem"), watermark_keys=[key])
    stamped = Committed(made.claim.stamped(authority.stamp(made.claim.encode())), made.opening)
    later = {"suspect_date": NOW + timedelta(days=3), "suspect_date_source": "an upload's record"}
    brought = presented(stamped, authority, **later)

    def judged() -> Verdict:
        found = judge(suspect, example, reference=mine, watermark_key=key, claim=brought, options=AS_GIVEN)
        assert found.answers.network.answer in ("unrelated", "not decided")
        assert found.answers.mark.answer == "read"
        assert found.answers.priority.answer == "first"
        return found.verdict

    verdict = judged()
    assert isinstance(verdict, Inconclusive)
    assert "a public model or the order of inputs or classes" in verdict.reason
    trusting = Rule(Proved, ("unrelated", "not decided"), ("read",), ("first",), "the mark was claimed first")
    monkeypatch.setattr("canon.verify.verdict.TABLE", (trusting, *TABLE))
    assert isinstance(judged(), Proved), "as it would be if old keys were trusted"
