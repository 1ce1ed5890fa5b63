"""The symbols that primitives work on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from canon.attacks.channels import Channels, Kind, deal_shares
from canon.attacks.placement import shuffle
from canon.errors import AttackError


@st.composite
def channels(draw: st.DrawFn) -> Channels:
    """Channels after some primitives."""
    groups = draw(st.integers(1, 3))
    found = Channels.of(groups * draw(st.integers(1, 5)), groups)
    for _ in range(draw(st.integers(0, 4))):
        count = draw(st.integers(1, 4))
        kind = draw(st.sampled_from(list(Kind)))
        if kind == Kind.LIVE:
            found = found.split(draw(st.integers(0, found.block - 1)), count)
        else:
            found = found.append(kind, count)
        if draw(st.booleans()):
            found = shuffle(found, torch.Generator().manual_seed(draw(st.integers(0, 99))))
    return found


@given(channels())
def test_every_original_is_there_in_its_block(found: Channels) -> None:
    size = found.before // found.groups
    for group in range(found.groups):
        live = found.origin[group][found.kind[group] == Kind.LIVE]
        assert set(live.tolist()) == set(range(group * size, (group + 1) * size))


@given(channels())
def test_an_origin_has_one_kind_and_one_block(found: Channels) -> None:
    seen: dict[int, tuple[int, int]] = {}
    for group in range(found.groups):
        for kind, origin in zip(found.kind[group].tolist(), found.origin[group].tolist(), strict=True):
            assert seen.setdefault(origin, (group, kind)) == (group, kind)
            assert (kind == Kind.LIVE) == (origin < found.before)


@given(channels(), st.sampled_from([0.0, 0.1, 1.0]))
def test_shares_sum_to_one(found: Channels, spread: float) -> None:
    shares = deal_shares(found, spread, torch.Generator().manual_seed(0))
    live = (found.kind == Kind.LIVE).flatten()
    assert bool((shares[~live] == 0).all())
    for origin in range(found.before):
        total = sum(
            share
            for share, own, alive in zip(shares.tolist(), found.origin.flatten().tolist(), live.tolist(), strict=True)
            if alive and own == origin
        )
        assert total == pytest.approx(1)


@given(channels(), st.integers(0, 99))
def test_a_shuffle_leaves_no_original_in_place(found: Channels, seed: int) -> None:
    shuffled = shuffle(found, torch.Generator().manual_seed(seed))
    assert shuffled.origin.sort(1).values.equal(found.origin.sort(1).values)
    size = found.before // found.groups
    old = torch.arange(found.before).view(found.groups, -1)
    for group in range(found.groups):
        if found.origin[group].unique().numel() > 1:  # else all channels are the same one
            assert not bool((shuffled.origin[group, :size] == old[group]).any())


def test_only_dummies_are_appended() -> None:
    with pytest.raises(AttackError, match="only dummies"):
        Channels.of(3, 1).append(Kind.LIVE, 2)
