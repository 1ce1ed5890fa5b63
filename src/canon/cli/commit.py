"""`canon commit`: fix today what a verification will use later, and let nobody say that it was made afterwards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from canon._files import atomic_path, check_outputs
from canon.cli.console import Talker
from canon.cli.groups import verb
from canon.cli.models import ReadOptions, load_model
from canon.cli.options import AsJson, Force

if TYPE_CHECKING:
    from canon.claims import Claim

Committed = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="The owner's model: a file of any format, as it will be shown.")
]
LayoutFile = Annotated[Path | None, typer.Option("--layout-key", "-l", dir_okay=False, help="Its layout key.")]
MarkFiles = Annotated[
    list[Path] | None,
    typer.Option("--watermark-key", "-w", dir_okay=False, help="A watermark key; repeat it for more."),
]
Signature = Annotated[
    Path | None,
    typer.Option("--signature", dir_okay=False, help="Commit to what OpenSSF Model Signing signed, not to MODEL."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=JSON", help="An option of the later verification, if not the standard one."),
]
KeyFile = Annotated[
    Path | None, typer.Option("--key", "-k", dir_okay=False, help="The owner's private key: PEM or OpenSSH.")
]
Secrets = Annotated[
    list[Path] | None,
    typer.Option("--secret", dir_okay=False, help="A secret that a watermark key will be derived from."),
]
NewSecret = Annotated[
    Path | None, typer.Option("--new-secret", dir_okay=False, help="Make such a secret, and write it there.")
]
NewKey = Annotated[
    Path | None, typer.Option("--new-key", dir_okay=False, help="Make an Ed25519 key, and write it there.")
]
Stamps = Annotated[
    list[str] | None, typer.Option("--timestamp", metavar="URL", help="A time-stamping authority; repeat it for more.")
]
Query = Annotated[
    Path | None, typer.Option("--request", dir_okay=False, help="Write the query for an authority, to send it later.")
]
Answers = Annotated[
    list[Path] | None,
    typer.Option("--attach", dir_okay=False, help="An authority's answer, for the claim that --out names."),
]
ClaimOut = Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The claim: public.")]
OpeningOut = Annotated[
    Path | None, typer.Option("--opening", dir_okay=False, help="Its opening: private. Default: beside the claim.")
]


@verb(
    "canon commit owner.safetensors -l layout.key -w owner.key --new-key signing.pem --out owner.claim",
    "canon commit owner.safetensors --key deposited.pem --request query.tsq --out offline.claim",
    "canon commit --new-secret mark.secret --new-key first.pem --out first.claim",
    "canon commit --attach answer.tsr --out deposited.claim",
)
def commit(
    reading: ReadOptions,
    model: Committed = None,
    out: ClaimOut = Path("owner.claim"),
    opening: OpeningOut = None,
    layout_key: LayoutFile = None,
    watermark_key: MarkFiles = None,
    signature: Signature = None,
    secret: Secrets = None,
    new_secret: NewSecret = None,
    option: Options = None,
    key: KeyFile = None,
    new_key: NewKey = None,
    timestamp: Stamps = None,
    request: Query = None,
    attach: Answers = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Commit to a model, its keys and options: write a signed and time-stamped claim, and its private opening.

    The claim says nothing about the model; give it to as many people as you like. With no model and no key it adds
    time-stamps to the claim that --out names.
    """
    from canon import claims
    from canon.claims.keys import generate_key, save_key

    talker = Talker(as_json)
    things = (model, layout_key, watermark_key, signature, secret, new_secret)
    if not any(things):
        _add_stamps(talker, out, timestamp or [], attach or [], request, force=force)
        return
    if (key is None) == (new_key is None):
        raise typer.BadParameter("give either --key or --new-key")
    if attach:
        raise typer.BadParameter("--attach adds to a claim that exists: give no model and no keys with it")
    if model is not None and signature is not None:
        raise typer.BadParameter("give either a model or --signature")
    shown = opening or out.with_suffix(".opening")
    check_outputs([new_key, new_secret])  # nobody's private key is ever replaced
    outputs = [out, shown, request, new_key, new_secret]
    check_outputs(outputs, [layout_key, *(watermark_key or ()), signature, *(secret or ()), key], force=force)
    drawn = [claims.load_secret(path) for path in secret or ()]
    if new_secret is not None:
        drawn.append(claims.make_secret())
    given: dict[str, Any] = {"options": _options(option), "timestamps": timestamp or [], "secrets": drawn}
    reference: Any = None if signature is None else claims.read_signature(signature)
    files: dict[str, list[str]] = {}
    signed = None if reference is None else reference.provenance()
    if model is not None:
        loaded = load_model(talker, model, reading, outputs=outputs, force=force)
        reference, signed = loaded.model, claims.provenance_of(model)
        if "sha256" in loaded.origin:
            files["reference"] = [loaded.origin["sha256"]]
    given |= _keys(layout_key, watermark_key or [], files)
    signer = generate_key() if key is None else _load_key(key)
    with talker.status("committing"):
        made = claims.commit(reference, key=signer, files=files, **given)
    if new_key is not None:
        save_key(signer, new_key)
    if new_secret is not None:
        claims.save_secret(drawn[-1], new_secret)
    made.save(out, shown, force=force)
    _write_query(made.claim, request, force=force)
    document = _document(made.claim, out) | {
        "opening": shown,
        "committed": [leaf.thing.role for leaf in made.opening.leaves if leaf.thing.role != "none"],
        "signed_model": signed,
    }
    lines = [f"claim: {out}, for everybody; {_stamps(made.claim)}", f"opening: {shown}, for nobody until a dispute"]
    talker.result(document, Text("\n".join(lines)))


def _add_stamps(
    talker: Talker, path: Path, urls: list[str], answers: list[Path], request: Path | None, *, force: bool
) -> None:
    """Extend a claim that exists."""
    from canon.claims import Claim, attach
    from canon.claims.tokens import fetch

    if not urls and not answers and request is None:
        raise typer.BadParameter("give a model, a layout key or a watermark key to commit to")
    check_outputs([request], [path, *answers], force=force)
    claim = Claim.load(path)
    claim.check()
    for answer in answers:
        claim = attach(claim, answer.read_bytes())
    before = claim.encode()
    for url in urls:
        claim = claim.stamped(fetch(url, before))
    claim.save(path, force=True)
    _write_query(claim, request, force=force)
    talker.result(_document(claim, path), Text(f"claim: {path}; {_stamps(claim)}"))


def _write_query(claim: Claim, path: Path | None, *, force: bool) -> None:
    from canon.claims import query

    if path is not None:
        with atomic_path(path, force=force) as target:
            target.write_bytes(query(claim.encode()).as_bytes())


def _keys(layout_key: Path | None, watermark_keys: list[Path], files: dict[str, list[str]]) -> dict[str, Any]:
    from canon.verify import LayoutKey
    from canon.verify.digest import file_digest
    from canon.watermarks import load_key

    found: dict[str, Any] = {"watermark_keys": [load_key(path) for path in watermark_keys]}
    files["watermark_key"] = [file_digest(path) for path in watermark_keys]
    if layout_key is not None:
        found["layout_key"] = LayoutKey.load(layout_key)
        files["layout_key"] = [file_digest(layout_key)]
    return found


def _load_key(path: Path) -> Any:
    """The private key; a locked one asks for its password, where there is somebody to ask."""
    from canon.claims import load_key
    from canon.errors import ClaimError

    try:
        return load_key(path)
    except ClaimError as error:
        if "locked with a password" not in error.message or not sys.stdin.isatty():
            raise
    return load_key(path, typer.prompt(f"password of {path}", hide_input=True, err=True).encode())


def _options(given: list[str] | None) -> dict[str, Any]:
    found = {}
    for text in given or ():
        name, _, value = text.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError as error:
            raise typer.BadParameter(f"'{text}' is no option; write NAME=JSON, such as tolerance=0.01") from error
    return found


def _document(claim: Claim, path: Path) -> dict[str, Any]:
    from canon.claims.keys import public_key

    statement = claim.check()
    return {
        "claim": path,
        "owner": public_key(statement.owner).keyid,
        "root": statement.root.hex(),
        "timestamps": len(claim.tokens),
    }


def _stamps(claim: Claim) -> str:
    count = len(claim.tokens)
    if not count:
        return "no time-stamp yet, so that it shows no time: use --timestamp, or --request and --attach"
    return f"{count} time-stamp{'s' if count > 1 else ''}"
