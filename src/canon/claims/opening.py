"""The private half: what was committed to, with the salts and the paths that show it.

Each leaf is a role, a content and 32 random bytes, so that nobody can guess what a claim holds. The places are fixed:
Canon's version, the options, the reference and the layout key have one leaf each, and watermark keys the rest: a claim
cannot commit to two references and show the one that fits. Places that are not used hold nothing, under a salt as well.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from canon.claims.canonical import canonical, check_format, fields, from_hex, parse
from canon.claims.claim import FEWEST_LEAVES, MOST_LEAVES, Statement, read_bytes
from canon.claims.keys import write_private
from canon.claims.merkle import layers, leaf_hash, path, root_of
from canon.claims.things import WORDS, Role, Table, Thing
from canon.errors import ClaimError

FORMAT: Final = "canon-opening"
VERSION: Final = 1
PLACES: Final[tuple[Role, ...]] = ("canon", "options", "reference", "layout_key")
"""Roles of the first leaves; all further ones are watermark keys."""

SALT_BYTES: Final = 32


@dataclass(frozen=True)
class Leaf:
    """One thing with what shows that a claim commits to it."""

    index: int
    thing: Thing
    salt: bytes
    path: tuple[bytes, ...]

    @property
    def data(self) -> bytes:
        """What is hashed."""
        return canonical({"role": self.thing.role, "content": self.thing.content, "salt": self.salt.hex()})

    @property
    def root(self) -> bytes:
        """The root that follows."""
        return root_of(leaf_hash(self.data), self.index, self.path)


@dataclass(frozen=True)
class Opening:
    """Leaves of one claim, all of them or those that a verification needs."""

    root: bytes
    leaves: tuple[Leaf, ...]
    tensors: Table | None = None
    """One row for every tensor of the reference, so that a difference can be named."""

    def check(self, statement: Statement) -> None:
        """Raise unless every leaf stands in this claim's tree, in its place."""
        if self.root != statement.root:
            raise ClaimError("the opening belongs to another claim: it names another root")
        for leaf in self.leaves:
            word = WORDS.get(leaf.thing.role, "an empty place")
            if leaf.index >= statement.leaves or 1 << len(leaf.path) != statement.leaves:
                raise ClaimError(f"the opening of {word} does not fit the claim's tree")
            if leaf.thing.role not in ("none", _role(leaf.index)):
                raise ClaimError(f"the opening of {word} stands in the place of {WORDS[_role(leaf.index)]}")
            if leaf.root != statement.root:
                raise ClaimError(
                    f"the opening of {word} does not lead to the claim's root: it is not what was committed to"
                )
        if self.tensors is not None:
            held = [leaf.thing.content.get("tensors") for leaf in self.of("reference") if leaf.thing.content]
            if sha256(canonical(self.tensors)).hexdigest() not in held:
                raise ClaimError("the opening's table of tensors is not the one that was committed to")

    def of(self, role: Role) -> tuple[Leaf, ...]:
        """The leaves of one role."""
        return tuple(leaf for leaf in self.leaves if leaf.thing.role == role)

    def reveal(self, *wanted: Thing) -> Opening:
        """An opening that shows only these things, and Canon's version and the options with them."""
        shown = tuple(leaf for leaf in self.leaves if leaf.thing in wanted or leaf.thing.role in ("canon", "options"))
        tensors = self.tensors if any(leaf.thing.role == "reference" for leaf in shown) else None
        return Opening(self.root, shown, tensors)

    def encode(self) -> bytes:
        """The file: canonical JSON, one leaf a line."""
        rows = [
            canonical(
                {
                    "index": leaf.index,
                    "role": leaf.thing.role,
                    "content": leaf.thing.content,
                    "salt": leaf.salt.hex(),
                    "path": [value.hex() for value in leaf.path],
                }
            )
            for leaf in self.leaves
        ]
        head = f'{{"format":"{FORMAT}","version":{VERSION},"root":"{self.root.hex()}","leaves":[\n'.encode()
        return head + b",\n".join(rows) + b'\n],"tensors":\n' + canonical(self.tensors) + b"\n}\n"

    @staticmethod
    def decode(data: bytes) -> Opening:
        """Read an opening; it may come from anybody."""
        kind, version, root, rows, tensors = fields(
            parse(data, "opening"), "opening", "format", "version", "root", "leaves", "tensors"
        )
        check_format(kind, version, FORMAT, VERSION, "opening")
        if not isinstance(rows, list) or len(rows) > MOST_LEAVES:
            raise ClaimError("the opening is damaged: too many leaves, or none")
        leaves = tuple(_leaf(row) for row in rows)
        if len({leaf.index for leaf in leaves}) != len(leaves):
            raise ClaimError("the opening is damaged: two leaves in one place")
        opening = Opening(from_hex(root, "opening", 32), leaves, _table(tensors))
        if opening.encode() != data:
            raise ClaimError("the opening is damaged: the file is not as Canon writes it")
        return opening

    @staticmethod
    def load(path: str | Path) -> Opening:
        """Read an opening from disk."""
        try:
            return Opening.decode(read_bytes(path))
        except ClaimError as error:
            raise ClaimError(error.message, where=str(path), hint=error.hint) from error

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the opening, for its owner's eyes alone."""
        write_private(path, self.encode(), force=force)


def plant(things: Sequence[Thing], tensors: Table | None = None) -> Opening:
    """Put things into a tree under fresh salts; the opening shows all of it."""
    placed: list[Thing] = [Thing("none", None)] * len(PLACES)
    for thing in things:
        if thing.role == "watermark_key":
            placed.append(thing)
        elif placed[PLACES.index(thing.role)].role != "none":
            raise ClaimError(f"a claim commits to {WORDS[thing.role]} once")
        else:
            placed[PLACES.index(thing.role)] = thing
    size = max(FEWEST_LEAVES, 1 << (len(placed) - 1).bit_length())
    if size > MOST_LEAVES:
        raise ClaimError(f"a claim commits to at most {MOST_LEAVES - len(PLACES)} watermark keys")
    placed += [Thing("none", None)] * (size - len(placed))
    bare = [Leaf(index, thing, secrets.token_bytes(SALT_BYTES), ()) for index, thing in enumerate(placed)]
    tree = layers([leaf_hash(leaf.data) for leaf in bare])
    leaves = tuple(Leaf(leaf.index, leaf.thing, leaf.salt, path(tree, leaf.index)) for leaf in bare)
    return Opening(tree[-1][0], leaves, tensors)


def _role(index: int) -> Role:
    return PLACES[index] if index < len(PLACES) else "watermark_key"


def _leaf(row: Any) -> Leaf:
    index, role, content, salt, neighbours = fields(row, "opening", "index", "role", "content", "salt", "path")
    if type(index) is not int or not 0 <= index < MOST_LEAVES:
        raise ClaimError("the opening is damaged: a leaf without a place")
    if role not in (*PLACES, "watermark_key", "none") or not isinstance(neighbours, list):
        raise ClaimError("the opening is damaged: a leaf without a role or a path")
    if not isinstance(content, str if role == "canon" else type(None) if role == "none" else dict):
        raise ClaimError("the opening is damaged: a leaf that holds something else than its role says")
    return Leaf(
        index, Thing(role, content), from_hex(salt, "opening", SALT_BYTES),
        tuple(from_hex(value, "opening", 32) for value in neighbours[:64]),
    )  # fmt: skip


def _table(value: Any) -> Table | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(
        isinstance(row, list) and len(row) == 4 and isinstance(row[0], str) for row in value
    ):
        raise ClaimError("the opening is damaged: its table of tensors is none")
    return value
