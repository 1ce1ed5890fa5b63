"""The public half: a signed statement that something was committed to, and the time-stamps it has gathered.

The file is JSON with its lines in fixed places, so that it can be taken apart with `sed`: line 2 is the signed
envelope, every time-stamp has a line of its own. A time-stamp stamps *the file as it was with its first few
time-stamps*: several authorities may stamp the same state, and a later one may stamp the earlier ones before their
certificates expire.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Final

from canon._files import atomic_path
from canon.claims.canonical import (
    MOST_BYTES,
    canonical,
    check_format,
    fields,
    from_base64,
    from_hex,
    parse,
    read_time,
    to_base64,
    write_time,
)
from canon.claims.envelope import check_signature, payload_of
from canon.claims.keys import public_key
from canon.errors import ClaimError

FORMAT: Final = "canon-claim"
VERSION: Final = 1
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:canon-nso:claim:v1"
TREE: Final = "rfc6962-sha256"
SUBJECT: Final = "commitment"
FEWEST_LEAVES: Final = 8
"""Leaves of every claim with up to four watermark keys: their number then says nothing."""

MOST_LEAVES: Final = 1 << 12
MOST_TOKENS: Final = 64


@dataclass(frozen=True)
class Statement:
    """What a claim says in public."""

    root: bytes
    """Root of the hash tree."""

    leaves: int
    """Leaves of the tree: how many things can have been committed to at most."""

    owner: str
    """PEM text of the public key that signs."""

    created: datetime
    """When it was made, as its maker says; it counts for nothing without a time-stamp."""

    def encode(self) -> bytes:
        """The in-toto statement, as canonical JSON."""
        return canonical(
            {
                "_type": STATEMENT_TYPE,
                "subject": [{"name": SUBJECT, "digest": {"sha256": self.root.hex()}}],
                "predicateType": PREDICATE_TYPE,
                "predicate": {
                    "tree": TREE,
                    "leaves": self.leaves,
                    "owner": self.owner,
                    "created": write_time(self.created),
                },
            }
        )

    @staticmethod
    def decode(payload: bytes) -> Statement:
        """Read a statement, and nothing that only looks like one."""
        kind, subjects, predicate_type, predicate = fields(
            parse(payload, "claim"), "claim", "_type", "subject", "predicateType", "predicate"
        )
        if (kind, predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise ClaimError(f"the statement is no claim: it is a '{predicate_type!s:.60}'")
        if not isinstance(subjects, list) or len(subjects) != 1:
            raise ClaimError("the claim is damaged: expected one subject")
        name, digest = fields(subjects[0], "claim", "name", "digest")
        tree, leaves, owner, created = fields(predicate, "claim", "tree", "leaves", "owner", "created")
        if (tree, name) != (TREE, SUBJECT) or not isinstance(owner, str):
            raise ClaimError("the claim is damaged: it does not say what is committed, or whose it is")
        if type(leaves) is not int or not FEWEST_LEAVES <= leaves <= MOST_LEAVES or leaves & (leaves - 1):
            raise ClaimError(f"the claim is damaged: a tree of {leaves!r:.40} leaves")
        root = from_hex(fields(digest, "claim", "sha256")[0], "claim", 32)
        found = Statement(root, leaves, owner, read_time(created, "claim"))
        if found.encode() != payload:
            raise ClaimError("the claim is damaged: its statement is not as Canon writes it")
        return found


@dataclass(frozen=True)
class Claim:
    """A signed statement and its time-stamps. Reading one checks its form; `check` checks the signature."""

    envelope: bytes
    """DSSE envelope, canonical JSON."""

    tokens: tuple[bytes, ...] = ()
    """RFC 3161 responses, in the order in which they came."""

    @cached_property
    def statement(self) -> Statement:
        """What it says."""
        return Statement.decode(payload_of(self.envelope, PAYLOAD_TYPE, "claim"))

    def check(self) -> Statement:
        """The statement, if its signature holds."""
        statement = self.statement
        check_signature(self.envelope, public_key(statement.owner), "claim")
        return statement

    def state(self, count: int) -> bytes:
        """The file as it was with its first `count` time-stamps: what the others may have stamped."""
        tokens = ",\n".join(f'"{to_base64(token)}"' for token in self.tokens[:count])
        head = f'{{"format":"{FORMAT}","version":{VERSION},"envelope":\n'.encode()
        return head + self.envelope + b'\n,"timestamps":[\n' + (tokens + "\n" if tokens else "").encode() + b"]}\n"

    def encode(self) -> bytes:
        """The file."""
        return self.state(len(self.tokens))

    @staticmethod
    def decode(data: bytes) -> Claim:
        """Read a claim file; it may come from anybody."""
        kind, version, envelope, tokens = fields(
            parse(data, "claim"), "claim", "format", "version", "envelope", "timestamps"
        )
        check_format(kind, version, FORMAT, VERSION, "claim")
        if not isinstance(tokens, list) or len(tokens) > MOST_TOKENS:
            raise ClaimError(f"the claim is damaged: expected at most {MOST_TOKENS} time-stamps")
        claim = Claim(canonical(envelope), tuple(from_base64(token, "time-stamp") for token in tokens))
        if claim.encode() != data:
            raise ClaimError("the claim is damaged: the file is not as Canon writes it")
        _ = claim.statement
        return claim

    @staticmethod
    def load(path: str | Path) -> Claim:
        """Read a claim file from disk."""
        try:
            return Claim.decode(read_bytes(path))
        except ClaimError as error:
            raise ClaimError(error.message, where=str(path), hint=error.hint) from error

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the claim file."""
        with atomic_path(path, force=force) as target:
            target.write_bytes(self.encode())

    def stamped(self, token: bytes) -> Claim:
        """The claim with one more time-stamp."""
        if len(self.tokens) == MOST_TOKENS:
            raise ClaimError(f"a claim holds at most {MOST_TOKENS} time-stamps")
        return replace(self, tokens=(*self.tokens, token))


def read_bytes(path: str | Path) -> bytes:
    """A small file, whole."""
    with open(path, "rb") as file:
        return file.read(MOST_BYTES + 1)
