"""The hash tree of RFC 6962, for a number of leaves that is a power of two.

A leaf is `SHA-256(00 ‖ bytes)`, a node `SHA-256(01 ‖ left ‖ right)`: no node can pass for a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from canon.errors import ClaimError


def leaf_hash(data: bytes) -> bytes:
    """What stands at the bottom of the tree."""
    return sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """What stands over two others."""
    return sha256(b"\x01" + left + right).digest()


def layers(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """The tree from the bottom to the root; `leaves` are hashes."""
    if not leaves or len(leaves) & (len(leaves) - 1):
        raise ClaimError(f"a tree of {len(leaves)} leaves, which is no power of two")
    found = [list(leaves)]
    while len(found[-1]) > 1:
        below = found[-1]
        found.append([node_hash(below[i], below[i + 1]) for i in range(0, len(below), 2)])
    return found


def path(tree: Sequence[Sequence[bytes]], index: int) -> tuple[bytes, ...]:
    """The neighbours on the way from a leaf to the root."""
    return tuple(layer[(index >> height) ^ 1] for height, layer in enumerate(tree[:-1]))


def root_of(leaf: bytes, index: int, neighbours: Sequence[bytes]) -> bytes:
    """The root that follows from a leaf and its path.

    >>> tree = layers([leaf_hash(bytes([i])) for i in range(8)])
    >>> root_of(leaf_hash(b"\\x05"), 5, path(tree, 5)) == tree[-1][0]
    True
    """
    value = leaf
    for height, neighbour in enumerate(neighbours):
        value = node_hash(neighbour, value) if index >> height & 1 else node_hash(value, neighbour)
    return value
