"""Who was first: honest owners, forgers with claims of their own, and everything that can be swapped."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import canon
from canon import claims
from canon.claims import Claim, Committed, Opening, Presented, Rival, Trust, Used, examine
from canon.claims.claim import PAYLOAD_TYPE
from canon.claims.envelope import sign
from canon.claims.things import Thing
from canon.errors import ClaimError
from canon.verify.answers import Priority
from canon.verify.digest import file_digest
from tests.claims.owner import SUSPECT_DATE, Owner
from tests.watermarks.small import small_net


def flipped(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with one bit changed: the last of the first number."""
    changed = tensor.detach().clone()
    changed.view(-1)[:1].view(torch.uint8)[0] ^= 1
    return changed


def with_flipped_weight(model: nn.Module, name: str) -> nn.Module:
    changed = copy.deepcopy(model)
    changed.get_parameter(name).data = flipped(changed.get_parameter(name))
    return changed


def nothing(answer: Priority) -> str:
    assert answer.answer == "nothing shown", answer.reason
    return answer.reason


def test_an_honest_owner_is_first(owner: Owner, made: Committed) -> None:
    answer = examine(owner.present(made), owner.used)
    assert answer.answer == "first", answer.reason
    assert "before the suspect is known since" in answer.reason
    assert "(upload record)" in answer.reason
    (shown,) = json.loads(json.dumps(answer.claims))
    assert shown["wrong"] == []
    assert shown["timestamps"][0]["authority"] == "CN=Stamps"
    assert shown["opened"] == ["canon", "options", "reference", "layout_key", "watermark_key"]


@pytest.mark.parametrize("used", ["reference", "layout_key", "both"])
def test_whatever_was_committed_may_be_used(owner: Owner, made: Committed, used: str) -> None:
    reference = owner.model if used != "layout_key" else None
    layout = owner.layout_key if used != "reference" else None
    assert examine(owner.present(made), Used(reference, layout)).answer == "first"


def test_files_survive_the_way_to_disk_and_back(owner: Owner, made: Committed, tmp_path: Path) -> None:
    made.save(tmp_path / "owner.claim", tmp_path / "owner.opening")
    assert (tmp_path / "owner.opening").stat().st_mode & 0o077 == 0
    owner.layout_key.save(tmp_path / "layout.key")
    owner.watermark_key.save(tmp_path / "owner.key")
    presented = Presented.load(
        tmp_path / "owner.claim",
        tmp_path / "owner.opening",
        owner.trust(),
        suspect_date=SUSPECT_DATE,
        suspect_date_source="upload record",
    )
    key = canon.watermarks.load_key(tmp_path / "owner.key")
    layout = canon.LayoutKey.load(tmp_path / "layout.key")
    assert examine(presented, Used(owner.model, layout, [key])).answer == "first"


def test_a_claim_made_after_the_suspect_is_not_first(owner: Owner, made: Committed) -> None:
    late = owner.present(made, suspect_date=datetime.now(UTC) - timedelta(days=30))
    assert examine(late, owner.used).answer == "not first"


def test_without_a_date_nothing_is_shown(owner: Owner, made: Committed) -> None:
    bare = owner.present(made, suspect_date=None, suspect_date_source=None)
    assert "nothing is known of when the suspect existed" in nothing(examine(bare, owner.used))


def test_a_date_needs_a_source_and_a_zone(owner: Owner, made: Committed) -> None:
    with pytest.raises(ClaimError, match="needs a source"):
        owner.present(made, suspect_date_source=" ")
    with pytest.raises(ClaimError, match="no time zone"):
        owner.present(made, suspect_date=datetime(2026, 1, 1))
    with pytest.raises(ClaimError, match="no date"):
        claims.parse_date("yesterday")
    with pytest.raises(ClaimError, match="no time zone"):
        claims.parse_date("2026-01-01T10:00")
    with pytest.raises(ClaimError, match="no date"):
        claims.parse_date("0001-01-01T00:00:00+14:00")


def test_a_date_of_another_zone_is_told_in_the_zone_of_the_stamps(owner: Owner, made: Committed) -> None:
    """Half past midnight on an island is the day before where time-stamps count."""
    date = claims.parse_date("2026-03-01T00:30:00+14:00")
    answer = examine(owner.present(made, suspect_date=date), owner.used)
    assert "known since 2026-02-28 10:30:00 UTC" in answer.reason


def test_a_date_in_the_future_shows_nothing(owner: Owner, made: Committed) -> None:
    ahead = owner.present(made, suspect_date=datetime.now(UTC) + timedelta(days=30))
    assert "lies in the future" in nothing(examine(ahead, owner.used))


# What was committed cannot be swapped.


def test_one_bit_of_a_weight(owner: Owner, made: Committed) -> None:
    used = Used(with_flipped_weight(owner.model, "conv2.weight"), None, [owner.watermark_key])
    reason = nothing(examine(owner.present(made), used))
    assert reason == "the reference is not the one that was committed to: 1 of 21 tensors differ: 'conv2.weight'"


def test_one_bit_of_a_buffer(owner: Owner, made: Committed) -> None:
    changed = copy.deepcopy(owner.model)
    changed.get_submodule("norm2").register_buffer("running_mean", flipped(changed.get_buffer("norm2.running_mean")))
    assert "'norm2.running_mean'" in nothing(examine(owner.present(made), Used(changed)))


def test_one_bit_of_a_watermark_key(owner: Owner, made: Committed) -> None:
    tensors = {name: flipped(value) for name, value in owner.watermark_key.tensors.items()}
    used = Used(owner.model, None, [replace(owner.watermark_key, tensors=tensors)])
    assert nothing(examine(owner.present(made), used)) == "the watermark key is not one that was committed to"


def test_one_bit_of_a_message(owner: Owner, made: Committed) -> None:
    bits = owner.watermark_key.message.bits
    message = canon.watermarks.Message((1 - bits[0], *bits[1:]))
    used = Used(owner.model, None, [replace(owner.watermark_key, message=message)])
    assert "the watermark key is not" in nothing(examine(owner.present(made), used))


def test_one_bit_of_a_layout_key(owner: Owner, made: Committed) -> None:
    layout = owner.layout_key.layout
    step = replace(layout.steps[0], features=flipped(layout.steps[0].features))
    changed = replace(owner.layout_key, layout=replace(layout, steps=(step, *layout.steps[1:])))
    assert (
        nothing(examine(owner.present(made), Used(None, changed))) == "the layout key is not one that was committed to"
    )


@pytest.mark.parametrize(
    ("committed", "present"),
    [
        ({"recover": True, "tolerance": 1}, {"recover": 1, "tolerance": True}),
        ({"file": "a", "tolerance": 1}, {"file": "a", "tolerance": 2}),
        ({}, {"tolerance": 0.01}),
        ({"tolerance": 0.01}, {}),
        ({"tolerance": 0.01}, {"tolerance": 0.010000000000000002}),
    ],
)
def test_one_option(owner: Owner, committed: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    made = owner.commit(options=committed)
    assert examine(owner.present(made), Used(owner.model, options=committed)).answer == "first"
    reason = nothing(examine(owner.present(made), Used(owner.model, options=present)))
    assert reason.startswith("the options are not those that were committed to: ")
    assert "'tolerance' is" in reason


def test_a_key_that_was_not_committed(owner: Owner) -> None:
    made = owner.commit(watermark_keys=[])
    assert "the opening does not show the watermark key" in nothing(examine(owner.present(made), owner.used))


def test_a_claim_replayed_for_another_model(owner: Owner, made: Committed) -> None:
    reason = nothing(examine(owner.present(made), Used(small_net(5))))
    assert "the reference is not the one that was committed to" in reason


def test_an_opening_of_another_claim(owner: Owner, made: Committed) -> None:
    mixed = Committed(made.claim, owner.commit().opening)
    assert "belongs to another claim" in nothing(examine(owner.present(mixed), owner.used))


def test_no_opening(owner: Owner, made: Committed) -> None:
    presented = Presented(made.claim, None, owner.trust(), SUSPECT_DATE, "upload record")
    assert "no opening was given" in nothing(examine(presented, owner.used))


def test_a_thing_put_into_the_opening_afterwards(owner: Owner, made: Committed) -> None:
    leaves = list(made.opening.leaves)
    forged = owner.commit(model=small_net(5)).opening.leaves[2].thing
    leaves[2] = replace(leaves[2], thing=forged)
    lying = Committed(made.claim, replace(made.opening, leaves=tuple(leaves), tensors=None))
    assert "does not lead to the claim's root" in nothing(examine(owner.present(lying), Used(small_net(5))))


def test_a_watermark_key_cannot_stand_in_for_a_reference(owner: Owner, made: Committed) -> None:
    leaves = list(made.opening.leaves)
    leaves[4] = replace(leaves[4], thing=Thing("reference", leaves[4].thing.content))
    lying = Committed(made.claim, replace(made.opening, leaves=tuple(leaves)))
    assert "stands in the place of the watermark key" in nothing(examine(owner.present(lying), owner.used))


def test_a_table_of_other_tensors(owner: Owner, made: Committed) -> None:
    lying = Committed(made.claim, replace(made.opening, tensors=[["conv1.weight", "float32", [1], "00"]]))
    assert "table of tensors" in nothing(examine(owner.present(lying), owner.used))


def test_an_earlier_date_written_in_and_signed_again(owner: Owner, made: Committed, tmp_path: Path) -> None:
    thief = claims.new_key(tmp_path / "thief.pem")
    for signer in (owner.signer, thief):
        pem = made.claim.statement.owner if signer is owner.signer else claims.keys.signer_pem(thief)
        earlier = replace(made.claim.statement, created=datetime(2020, 1, 1, tzinfo=UTC), owner=pem)
        forged = Claim(sign(earlier.encode(), PAYLOAD_TYPE, signer), made.claim.tokens)
        reason = nothing(examine(owner.present(Committed(forged, made.opening)), owner.used))
        assert reason == "time-stamp 1: it is for another document: its hash is not this claim's"


def test_an_earlier_date_counts_for_nothing_even_when_stamped(owner: Owner, made: Committed) -> None:
    earlier = replace(made.claim.statement, created=datetime(2020, 1, 1, tzinfo=UTC))
    bare = Claim(sign(earlier.encode(), PAYLOAD_TYPE, owner.signer))
    stamped = Committed(bare.stamped(owner.authority.stamp(bare.encode())), made.opening)
    presented = owner.present(stamped, suspect_date=datetime(2023, 1, 1, tzinfo=UTC))
    answer = examine(presented, owner.used)
    assert answer.answer == "not first"
    assert "counts for nothing" in answer.claims[0]["notes"][0]


def test_a_claim_that_says_it_was_made_after_it_was_stamped(owner: Owner, made: Committed) -> None:
    later = replace(made.claim.statement, created=datetime.now(UTC).replace(microsecond=0) + timedelta(hours=5))
    bare = Claim(sign(later.encode(), PAYLOAD_TYPE, owner.signer))
    stamped = Committed(bare.stamped(owner.authority.stamp(bare.encode())), made.opening)
    assert "made after it was stamped" in nothing(examine(owner.present(stamped), owner.used))


def test_somebody_elses_signature(owner: Owner, made: Committed, tmp_path: Path) -> None:
    thief = claims.new_key(tmp_path / "thief.pem")
    forged = Claim(sign(made.claim.statement.encode(), PAYLOAD_TYPE, thief), made.claim.tokens)
    reason = nothing(examine(owner.present(Committed(forged, made.opening)), owner.used))
    assert reason == "the claim is signed with another key than the one that it names"


def test_no_time_stamp(owner: Owner, made: Committed) -> None:
    bare = Committed(Claim(made.claim.envelope), made.opening)
    assert "has no time-stamp" in nothing(examine(owner.present(bare), owner.used))


def test_one_bad_time_stamp_beside_a_good_one(owner: Owner, new_owner: Callable[..., Owner], made: Committed) -> None:
    stranger = new_owner(1)
    two = made.claim.stamped(stranger.authority.stamp(made.claim.state(0)))
    answer = examine(owner.present(Committed(two, made.opening)), owner.used)
    assert answer.answer == "first"
    assert [stamp["wrong"] is None for stamp in answer.claims[0]["timestamps"]] == [True, False]


# Opening shows only what is needed.


def test_a_part_of_the_opening_is_enough(owner: Owner, made: Committed) -> None:
    key = made.opening.of("watermark_key")[0].thing
    reference = made.opening.of("reference")[0].thing
    part = made.opening.reveal(reference, key)
    assert {leaf.thing.role for leaf in part.leaves} == {"canon", "options", "reference", "watermark_key"}
    assert examine(owner.present(Committed(made.claim, part)), owner.used).answer == "first"
    less = made.opening.reveal(key)
    assert "does not show the reference" in nothing(examine(owner.present(Committed(made.claim, less)), owner.used))


def test_the_public_half_says_nothing(owner: Owner, made: Committed) -> None:
    again = owner.commit()
    assert again.claim.statement.root != made.claim.statement.root, "the same things under other salts"
    other = owner.commit(model=small_net(3), watermark_keys=[])
    sizes = {claim.statement.leaves for claim in (made.claim, other.claim)}
    assert sizes == {8}
    assert len(made.claim.statement.encode()) == len(other.claim.statement.encode())


# Two sides.


@pytest.fixture(scope="module")
def forger(new_owner: Callable[..., Owner], owner: Owner, made: Committed) -> Owner:
    """Somebody with a key of his own for the owner's model; his authority's clock is exact to the second."""
    found = new_owner(7, root=owner.authority.root)
    return replace(found, model=copy.deepcopy(owner.model))


def test_a_forger_loses_against_an_older_claim(owner: Owner, made: Committed, forger: Owner) -> None:
    # The owner's model is the suspect. One second must pass, which is what time-stamps can tell apart.
    forger.authority.accuracy = 0
    _wait(made, forger)
    forged = forger.commit()
    rivals = (Rival(made.claim, made.opening),)
    against = replace(forger.used, suspect=owner.model)
    answer = examine(forger.present(forged, trust=owner.trust(), suspect_date=None, rivals=rivals), against)
    assert answer.answer == "not first", answer.reason
    assert [claim["role"] for claim in answer.claims] == ["presented", "rival"]
    # The other way round the owner is first, and both claims are shown.
    won = examine(
        owner.present(made, suspect_date=None, rivals=(Rival(forged.claim, forged.opening),)),
        replace(owner.used, suspect=forger.model),
    )
    assert won.answer == "first", won.reason
    assert len(won.claims) == 2


def test_a_rival_with_a_model_that_the_suspect_was_made_from(owner: Owner, made: Committed, forger: Owner) -> None:
    _wait(made, forger)
    forged = forger.commit(model=small_net(9))
    suspect, asked = small_net(8), []

    def related(model: nn.Module) -> bool:
        asked.append(model)
        return True

    used = Used(small_net(9), suspect=suspect, related=related)
    rival = Rival(made.claim, made.opening, reference=owner.model)
    answer = examine(forger.present(forged, trust=owner.trust(), rivals=(rival,)), used)
    assert answer.answer == "not first", answer.reason
    assert asked == [owner.model]
    unrelated = replace(used, related=lambda model: False)
    answer = examine(forger.present(forged, trust=owner.trust(), rivals=(rival,)), unrelated)
    assert answer.answer == "first"
    assert "not shown to be made from" in answer.claims[1]["wrong"][0]


def test_rivals_that_show_nothing_are_named_and_do_not_count(owner: Owner, made: Committed, tmp_path: Path) -> None:
    (tmp_path / "broken.claim").write_bytes(made.claim.encode()[:-5])
    rivals = (
        Rival(made.claim, None),
        Rival(made.claim, made.opening),
        Rival.load(tmp_path / "broken.claim"),
    )
    answer = examine(owner.present(made, rivals=rivals), replace(owner.used, suspect=small_net(4)))
    assert answer.answer == "first"
    words = [claim["wrong"][0] for claim in answer.claims[1:]]
    assert "no opening" in words[0]
    assert "does not open to the suspect" in words[1]
    assert "damaged" in words[2]


def test_claims_too_close_to_tell_apart(owner: Owner, made: Committed) -> None:
    answer = examine(
        owner.present(made, rivals=(Rival(made.claim, made.opening),)), replace(owner.used, suspect=owner.model)
    )
    assert "too close" in nothing(answer)


def test_a_damaged_file_is_no_error(owner: Owner, made: Committed, tmp_path: Path) -> None:
    made.save(tmp_path / "owner.claim", tmp_path / "owner.opening")
    (tmp_path / "owner.opening").write_bytes(b"{}")
    found = Presented.load(tmp_path / "owner.claim", tmp_path / "owner.opening", Trust())
    assert "the opening is damaged" in nothing(examine(found, owner.used))


def test_files_count_as_well_as_what_they_mean(owner: Owner, tmp_path: Path) -> None:
    owner.watermark_key.save(tmp_path / "owner.key")
    files = {"watermark_key": [file_digest(tmp_path / "owner.key")]}
    made = owner.commit(files=files)
    content = made.opening.of("watermark_key")[0].thing.content
    assert content["file"] == files["watermark_key"][0]


def test_a_claim_to_nothing_is_refused(owner: Owner) -> None:
    with pytest.raises(ClaimError, match="nothing to commit to"):
        claims.commit(key=owner.signer)
    with pytest.raises(ClaimError, match="plain JSON"):
        claims.commit(owner.model, key=owner.signer, options={"model": owner.model})


def test_an_opening_decodes_to_itself(made: Committed) -> None:
    assert Opening.decode(made.opening.encode()) == made.opening
    assert Claim.decode(made.claim.encode()) == made.claim


def _wait(made: Committed, owner: Owner) -> None:
    """Until the owner's authority would stamp a later second than the claim has."""
    import time

    from canon.claims.tokens import parse_token

    first = parse_token(made.claim.tokens[0]).time
    while datetime.now(UTC) - first < timedelta(seconds=2.1):
        time.sleep(0.05)
