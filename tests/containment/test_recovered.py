"""By a key, the owner's network is also looked for in what recovery has left of the suspect."""

from __future__ import annotations

from dataclasses import replace

import pytest

import canon
from canon.api.comparing import Compared, Owner, compare
from canon.api.containing import find, find_in_recovered
from canon.verify import LayoutKey
from tests.containment.disguises import chain, images


def compared_by(owner: Owner, *, attacked: bool = True) -> Compared:
    example = images()
    suspect = canon.attack(chain(), example, "mix-opseq", ratio=0.3, seed=1).model if attacked else chain()
    return compare(suspect, owner, tolerance=1e-3, layers=None, matching="nearest", recovering=True)


@pytest.fixture(scope="module")
def key() -> LayoutKey:
    return canon.register(chain(), images())


def test_what_recovery_left_counts_where_the_key_finds_more_there(key: LayoutKey) -> None:
    owner = Owner.of(None, key, images())
    compared = compared_by(owner)
    known = find(compared, owner, ())
    assert find_in_recovered(compared, owner, (), known) is None, "nothing more was found there"
    found = find_in_recovered(compared, owner, (), replace(known, coverage=0.4))
    assert found is not None
    assert found.coverage == 1
    assert "recovery has left" in found.notes[-1]


def test_it_is_not_asked_where_it_would_say_the_same(key: LayoutKey) -> None:
    by_model, by_key = Owner.of(chain(), None, images()), Owner.of(None, key, images())
    for owner, attacked in ((by_model, True), (by_key, False)):
        compared = compared_by(owner, attacked=attacked)
        little = replace(find(compared, owner, ()), coverage=0.0)
        assert find_in_recovered(compared, owner, (), little) is None
