"""The symbols that primitives work on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from canon.attacks.blend import Blend
from canon.attacks.channels import Channels, Kind, deal_shares
from canon.attacks.placement import interleave, shuffle
from canon.errors import AttackError


@st.composite
def channels(draw: st.DrawFn) -> Channels:
    """Channels after some primitives."""
    groups = draw(st.integers(1, 3))
    found = Channels.of(groups * draw(st.integers(1, 5)), groups)
    for _ in range(draw(st.integers(0, 4))):
        count, width = draw(st.integers(1, 4)), found.block
        kind = draw(st.sampled_from([*Kind, None]))
        whole = torch.nonzero(found.whole.all(0)).flatten()
        if kind == Kind.LIVE:
            found = found.split(draw(st.integers(0, found.block - 1)), count)
        elif kind == Kind.ODD:
            found = found.cancel(torch.rand(groups, count, generator=torch.Generator().manual_seed(count)) + 0.5)
        elif kind is not None:
            found = found.append(kind, count)
        elif whole.numel():
            found = found.disperse(whole[:count].expand(groups, -1))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        added = found.block - width
        found = shuffle(found, generator) if draw(st.booleans()) else interleave(found, added, generator)
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
def test_shares_sum_to_one_over_each_original_and_to_nothing_over_each_group(found: Channels, spread: float) -> None:
    shares = deal_shares(found, spread, torch.Generator().manual_seed(0))
    live, odd = (found.kind == Kind.LIVE).flatten(), (found.kind == Kind.ODD).flatten()
    assert bool((shares[~live & ~odd] == 0).all())
    for group in found.origin.flatten()[odd].unique():
        assert float(shares[odd & (found.origin.flatten() == group)].sum()) == pytest.approx(0, abs=1e-12)
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


@pytest.mark.parametrize("kind", [Kind.LIVE, Kind.ODD])
def test_only_dummies_are_appended(kind: Kind) -> None:
    with pytest.raises(AttackError, match="only dummies"):
        Channels.of(3, 1).append(kind, 2)


@given(channels())
def test_filters_cancel_over_each_group_and_give_each_original_whole(found: Channels) -> None:
    """The linear law that odd groups and replaced channels rest on: weights times filters."""
    shares = deal_shares(found, 0.3, torch.Generator().manual_seed(0))
    blend = Blend.of(found)
    if blend is None:
        return
    filters = torch.zeros(found.width, found.width + found.dummies, dtype=torch.float64)
    filters.index_put_((blend.noise[0], blend.noise[1]), blend.amount, accumulate=True)
    live, odd = (found.kind == Kind.LIVE).flatten(), (found.kind == Kind.ODD).flatten()
    for origin in found.origin.flatten()[live | odd].unique():
        members = (found.origin.flatten() == origin) & (live | odd)
        assert float((shares[members] @ filters[members]).abs().max()) < 1e-12
        whole = float(origin < found.before)
        assert float(shares[members] @ blend.own[members]) == pytest.approx(whole, abs=1e-12)
        assert float(shares[members] @ blend.shift[members]) == pytest.approx(whole, abs=1e-12)


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 5), st.integers(0, 99))
def test_interleaved_channels_stand_between_others_that_keep_their_order(
    groups: int, width: int, count: int, seed: int
) -> None:
    found = Channels.of(groups * width, groups).append(Kind.ZERO_OUT, count)
    placed = interleave(found, count, torch.Generator().manual_seed(seed))
    for group in range(groups):
        live = placed.kind[group] == Kind.LIVE
        assert placed.origin[group][live].tolist() == list(range(group * width, (group + 1) * width))
        assert int(torch.nonzero(~live).min()) <= width // 2
