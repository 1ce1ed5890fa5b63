"""`commit`: from a model, its keys and options to a signed claim and its opening."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from canon._files import check_output
from canon._version import __version__
from canon.claims.claim import PAYLOAD_TYPE, Claim, Statement
from canon.claims.envelope import sign
from canon.claims.keys import signer_pem
from canon.claims.opening import Opening, plant
from canon.claims.signed_models import SignedModel
from canon.claims.things import (
    Table,
    Thing,
    layout_key_thing,
    options_thing,
    reference_thing,
    secret_thing,
    signed_reference_thing,
    watermark_key_thing,
)
from canon.claims.timestamps import covers
from canon.claims.tokens import fetch, parse_token
from canon.errors import ClaimError
from canon.verify.key import LayoutKey
from canon.watermarks.key import Key

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner


@dataclass(frozen=True)
class Committed:
    """Both halves of a commitment."""

    claim: Claim
    """For everybody: it says nothing about the model."""

    opening: Opening
    """For the owner alone, until there is a dispute."""

    def save(self, claim: str | Path, opening: str | Path, *, force: bool = False) -> None:
        """Write both files; neither if one cannot be written."""
        for path in (claim, opening):
            check_output(Path(path), force=force)
        self.opening.save(opening, force=force)
        self.claim.save(claim, force=force)


def commit(
    reference: nn.Module | SignedModel | None = None,
    *,
    key: CryptoSigner,
    layout_key: LayoutKey | None = None,
    watermark_keys: Sequence[Key] = (),
    options: Mapping[str, Any] | None = None,
    timestamps: Sequence[str] = (),
    files: Mapping[str, Sequence[str]] | None = None,
    secrets: Sequence[bytes] = (),
) -> Committed:
    """Commit to a model and to everything that a later verification will use.

    Args:
        reference: The owner's model as it will be presented later, or what OpenSSF Model Signing signed of it.
        key: The owner's signing key: `canon.claims.load_key` or `canon.claims.new_key`.
        layout_key: Its layout key.
        watermark_keys: Its watermark keys.
        options: Options of a later verification that are not the standard ones.
        timestamps: Addresses of time-stamping authorities. They are sent a hash and nothing else.
        files: By role (`reference`, `layout_key`, `watermark_key`), SHA-256 of the files that these came from.
        secrets: Secrets that watermark keys will be derived from, before there is a model (`canon.claims.new_secret`).
    """
    things, table = used_things(reference, layout_key, watermark_keys, options, files)
    things += [secret_thing(secret) for secret in secrets]
    if not {thing.role for thing in things} & {"reference", "layout_key", "watermark_key"}:
        raise ClaimError("there is nothing to commit to", hint="Give a model, a layout key or a watermark key")
    opening = plant([Thing("canon", __version__), *things], table)
    statement = Statement(opening.root, len(opening.leaves), signer_pem(key), datetime.now(UTC).replace(microsecond=0))
    claim = Claim(sign(statement.encode(), PAYLOAD_TYPE, key))
    first = claim.encode()
    for url in timestamps:
        claim = claim.stamped(fetch(url, first))
    return Committed(claim, opening)


def attach(claim: Claim, token: bytes) -> Claim:
    """The claim with an authority's answer.

    Raises:
        ClaimError: The answer is damaged, not granted, or for another file.
    """
    parsed = parse_token(token)
    if token in claim.tokens:
        raise ClaimError("the claim holds this time-stamp already")
    if covers(parsed, [claim.state(count) for count in range(len(claim.tokens) + 1)]) is None:
        raise ClaimError("the time-stamp is for another document: its hash is not this claim's")
    return claim.stamped(token)


def used_things(
    reference: nn.Module | SignedModel | None,
    layout_key: LayoutKey | None,
    watermark_keys: Sequence[Key],
    options: Mapping[str, Any] | None,
    files: Mapping[str, Sequence[str]] | None,
) -> tuple[list[Thing], Table | None]:
    """Everything at hand as things, options last, and the table of the reference's tensors."""
    known = files or {}
    things: list[Thing] = []
    table: Table | None = None
    if isinstance(reference, SignedModel):
        things.append(signed_reference_thing(reference.digest))
    elif reference is not None:
        thing, table = reference_thing(reference, _file(known, "reference", 0))
        things.append(thing)
    if layout_key is not None:
        things.append(layout_key_thing(layout_key, _file(known, "layout_key", 0)))
    things += [watermark_key_thing(k, _file(known, "watermark_key", i)) for i, k in enumerate(watermark_keys)]
    return [*things, options_thing(options or {})], table


def _file(files: Mapping[str, Sequence[str]], role: str, index: int) -> str | None:
    given = files.get(role, ())
    return given[index] if index < len(given) else None
