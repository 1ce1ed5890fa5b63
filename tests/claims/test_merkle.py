"""The hash tree, against RFC 6962 as it is written there."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canon.claims.merkle import layers, leaf_hash, path, root_of
from canon.errors import ClaimError


def tree_hash(entries: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1."""
    if len(entries) == 1:
        return sha256(b"\x00" + entries[0]).digest()
    half = 1 << (len(entries) - 1).bit_length() - 1
    return sha256(b"\x01" + tree_hash(entries[:half]) + tree_hash(entries[half:])).digest()


entries = st.integers(0, 5).flatmap(lambda depth: st.lists(st.binary(), min_size=1 << depth, max_size=1 << depth))


@given(entries, st.data())
def test_the_root_and_every_path_agree_with_the_standard(values: list[bytes], data: st.DataObject) -> None:
    tree = layers([leaf_hash(value) for value in values])
    assert tree[-1] == [tree_hash(values)]
    index = data.draw(st.integers(0, len(values) - 1))
    assert root_of(leaf_hash(values[index]), index, path(tree, index)) == tree_hash(values)


@given(entries.filter(lambda values: len(values) > 1), st.data())
def test_another_value_place_or_neighbour_gives_another_root(values: list[bytes], data: st.DataObject) -> None:
    tree = layers([leaf_hash(value) for value in values])
    index = data.draw(st.integers(0, len(values) - 1))
    way, root = path(tree, index), tree[-1][0]
    assert root_of(leaf_hash(values[index] + b"!"), index, way) != root
    assert root_of(leaf_hash(values[index]), index, (sha256(way[0]).digest(), *way[1:])) != root
    # A node cannot pass for a leaf.
    assert root_of(leaf_hash(tree[1][index // 2]), index // 2, way[1:]) != root


@pytest.mark.parametrize("count", [0, 3, 6])
def test_other_sizes_are_refused(count: int) -> None:
    with pytest.raises(ClaimError, match="power of two"):
        layers([bytes(32)] * count)
